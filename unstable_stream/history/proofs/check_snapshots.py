"""Compare the snapshots of a run's processors and of its collector with a fold from the beginning.

A snapshot of a processor that differs was made by a run's own code that is no fold, or by a bug. Deleting it
makes the processor fold the run again. Of the collector's two parts are left out, since they follow from the
order in which the topics were read: which checkpoints may be drawn in the weighted modes, and on a log that
compacts the ratings of that moment.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from unstable_stream.errors import ConfigError, EnvironmentUnavailableError
from unstable_stream.events import GameStarted
from unstable_stream.history.proofs.ledger import Evidence
from unstable_stream.history.proofs.reports import Check
from unstable_stream.log.port import TopicPartition
from unstable_stream.log.reading import events_to_end, read_to_end
from unstable_stream.log.saved_state import UnusableStateError
from unstable_stream.runs.code import find_code
from unstable_stream.runs.starts import deleted_records, recorded_starts, run_starts
from unstable_stream.services.streams.processor import KeepsState, Processor, ProcessorSpec, group_of
from unstable_stream.services.streams.snapshots import POSITION, FoldState, run_name, scope_of, unpack
from unstable_stream.services.workers.collector import event_for_collector, topics_of_collector
from unstable_stream.services.workers.collector_snapshot import read_snapshot
from unstable_stream.services.workers.exploitability import ExploitabilitySchedule
from unstable_stream.services.workers.game_schedule import GameSchedule, ScheduleState

_SOURCE = "a fold from the beginning"


class SnapshotCheck:
    """Checks the saved states of one run and one processor while its records are folded again."""

    def __init__(self, check: Check, run_id: str) -> None:
        """Use :meth:`read`."""
        self._check = check
        self._run_id = run_id
        self._saved: dict[int, list[tuple[str, FoldState]]] = defaultdict(list)
        """By partition, scope and state, the newest first."""

    @classmethod
    async def read(cls, check: Check, spec: ProcessorSpec, evidence: Evidence) -> "SnapshotCheck":
        """Read the saved states that there are now, of a host of this run and of a host of all runs.

        Where the beginning of the input was deleted nothing can be compared, nor what was saved beyond its
        ends.
        """
        (topic,) = spec.inputs
        run, found = evidence.run, cls(check, evidence.run.run_id)
        for at, end in evidence.ends[topic].items():
            for group in (group_of(spec.name, run.run_id), group_of(spec.name, None)):
                scope = scope_of(group, TopicPartition(topic, at.partition))
                states = await evidence.log.saved(scope, [POSITION, run_name(run.run_id)])
                packed = states.get(run_name(run.run_id))
                if packed is None or POSITION not in states:
                    continue  # without it the run is folded again
                # Only now: where nothing was saved, a run's own code need not be loaded.
                digest = spec.digest(run.first_config())
                state = None
                with contextlib.suppress(UnusableStateError):
                    state = unpack(packed, digest, end)
                if evidence.trimmed[topic] or state is None:
                    check.gone += 1
                else:
                    found._saved[at.partition].append((scope, state))
        for saved in found._saved.values():
            saved.sort(key=lambda one: -one[1].position)
        return found

    def before(self, partition: int, offset: int, processor: Processor) -> None:
        """Compare what was saved after all records below ``offset``, all of which were folded."""
        due = self._saved.get(partition)
        while due and due[-1][1].position <= offset:
            self._compare(*due.pop(), processor)

    def finish(self, processors: dict[int, Processor], make: Callable[[], Processor]) -> None:
        """Compare the rest: all records have been folded. ``make`` returns one that has folded nothing."""
        for partition, due in self._saved.items():
            while due:
                self._compare(*due.pop(), processors.get(partition) or make())

    def _compare(self, scope: str, saved: FoldState, processor: Processor) -> None:
        if not isinstance(processor, KeepsState):
            self._check.gone += 1
            return
        self._check.compared += 1
        where = f"snapshot {scope} of offset {saved.position}"
        bodies = msgspec.json.encode(saved.state), msgspec.json.encode(processor.state())
        self._check.compare(where, self._run_id, *bodies, source=_SOURCE)


async def check_collector(evidence: Evidence) -> Check:
    """Compare what is saved now of the collector, if it can be used and all that it follows from is there."""
    check = Check("collector snapshot")
    log, run, config = evidence.log, evidence.run, evidence.run.config()
    topics = topics_of_collector(config)
    if not set(topics) <= (await log.topics()).keys():
        return check
    try:
        find_code(config)
        found = await read_snapshot(log, run.run_id, topics, config)
        if found is None:
            return check
        saved, _ = found
        schedule = GameSchedule(run.run_id, config, run.began)
    except (UnusableStateError, ConfigError, EnvironmentUnavailableError):
        # No collector would use it, or what it was made with is not on this machine.
        check.gone += 1
        return check
    if await deleted_records(log, recorded_starts(run.began, await log.log_id(), topics), topics):
        check.gone += 1
        return check
    first_update = run.began.parent_update or 0 if run.began else 0
    measuring = ExploitabilitySchedule(run.run_id, config, first_update)
    starts = await run_starts(log, run.run_id, topics)
    async for record in read_to_end(log, topics, starts=starts, ends=saved.offsets):
        if (event := event_for_collector(record, run.run_id)) is not None:
            schedule.apply(event)
            measuring.apply(event)
    # The collector knows its own games before it reads them.
    topic = GameStarted.TOPIC
    ahead = {at: position for at, position in saved.offsets.items() if at.topic == topic}
    async for _, game in events_to_end(log, (topic,), run_id=run.run_id, starts=ahead):
        if isinstance(game, GameStarted) and game.game_index < saved.schedule.next_index.get(game.split, 0):
            schedule.apply(game)
    check.compared += 1
    recorded = _comparable(saved.schedule, saved.measured, evidence)
    recomputed = _comparable(schedule.state(), measuring.state(), evidence)
    where = f"snapshot of collector/{run.run_id}"
    check.compare(where, run.run_id, recorded, recomputed, source=_SOURCE)
    return check


def _comparable(schedule: ScheduleState, measured: Any, evidence: Evidence) -> bytes:
    ratings = [] if evidence.compacted else schedule.pool.ratings
    pool = msgspec.structs.replace(schedule.pool, active=(), ratings=ratings)
    state = [msgspec.structs.replace(schedule, pool=pool), measured]
    return msgspec.json.encode(state, order="deterministic")
