"""What must hold when the faults are over and all is drained."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

from tests.simulation.services import RUN, Counts, tallying
from tests.simulation.world import FoundError, World
from unstable_stream.archive.read import query
from unstable_stream.history.proofs.verify import audit_run, verify_run
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log.reading import events_to_end
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.streams.plugins import Context, Position
from unstable_stream.services.workers.archiver import run_archiver

_ONCE = ("steps", "ratings", "learner-updates", "checkpoints")
"""Topics whose writers use transactions of a fenced producer: no event may be there twice."""


async def check_all(world: World, log: EventLog, data: DataDir) -> str:
    """Raise :class:`FoundError` for the first thing that is wrong; return the audit."""
    audit = await audit_run(log, RUN)
    _require(audit.ok, f"audit: {audit}")
    _require(audit.state == "completed", f"audit: the run is {audit.state}")
    _require(audit.steps.unshaped == 0, f"audit: {audit.steps.unshaped} steps were never shaped")
    verified = await verify_run(log, RUN, games=world.scenario.replayed)
    _require(verified.ok, f"verify: {verified}")
    await _check_once(log)
    if world.scenario.plugged_in:
        await _check_plugin(log)
    if world.scenario.archived:
        await _check_archive(world, log, data)
    return str(audit)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise FoundError(otherwise)


async def _check_once(log: EventLog) -> None:
    for topic in _ONCE:
        seen = Counter([event.event_id async for _, event in events_to_end(log, (topic,), run_id=RUN)])
        twice = [event_id for event_id, count in seen.items() if count > 1]
        _require(not twice, f"{topic}: {len(twice)} events are there twice, first {twice[:1]}")


async def _check_plugin(log: EventLog) -> None:
    """A plug-in's metrics equal those of a fold of each partition from its beginning."""
    expected: dict[str, float] = {}
    states: dict[TopicPartition, Counts] = defaultdict(Counts)
    handler = tallying.open()
    async for record, event in events_to_end(log, tallying.topics, run_id=RUN):
        at = TopicPartition(record.topic, record.partition)
        context = Context(tallying.name, event, Position(*at, record.offset), states[at])
        handler.handle(event, context)
        for metric in context.emitted:
            # An event that is in the log twice has one metric; both times are folded.
            expected.setdefault(metric.event_id, next(iter(metric.values.values())))
    found: dict[str, float] = {}
    async for _, event in events_to_end(log, ("metrics",), run_id=RUN):
        if getattr(event, "source", "") == tallying.source:
            found.setdefault(event.event_id, next(iter(event.values.values())))  # type: ignore[attr-defined]
    wrong = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    _require(
        not wrong,
        f"plug-in: {len(wrong)} of {len(expected)} metrics differ from a fold, first "
        f"{wrong[:1]}: {[(expected.get(key), found.get(key)) for key in wrong[:1]]}",
    )


async def _check_archive(world: World, log: EventLog, data: DataDir) -> None:
    """The archive equals one that is made anew from the log."""
    rebuilt = data.root / "rebuilt.duckdb"
    stop = asyncio.Event()
    stop.set()
    await run_archiver(log, rebuilt, stop=stop)
    if world.faults["compaction"]:
        return
    live, anew = _tables(data.archive_file), _tables(rebuilt)
    for name in sorted(live.keys() | anew.keys()):
        missing = list((Counter(anew.get(name, [])) - Counter(live.get(name, []))).elements())
        ghosts = list((Counter(live.get(name, [])) - Counter(anew.get(name, []))).elements())
        _require(
            not missing and not ghosts,
            f"archive: table {name} lacks {len(missing)} rows and has {len(ghosts)} that are not in the log; "
            f"first {(missing + ghosts)[:1]}",
        )


_OF_ONE_ARCHIVE = {"schema_version", "positions", "missing_records", "dropped_runs"}
"""Tables about the archive itself, not about its records."""


def _tables(path: Path) -> dict[str, list[str]]:
    """Return all rows by table, without the number that only one archive gives to a record."""
    every = "SELECT table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
    return {
        str(name): [repr(row) for row in query(path, f'SELECT * EXCLUDE (record_number) FROM "{name}"').rows]
        for (name,) in query(path, every).rows
        if name not in _OF_ONE_ARCHIVE
    }
