"""Replay and plug-ins at full speed against bare reading and decoding of the same records.

Run ``python -m benchmarks.replay`` on a made-up log, or with ``--data`` on a copy of a data directory's log.
Bare reading polls one consumer of all topics and decodes each record once. Replay merges the partitions in
order of time without decoding; a plug-in is given every event, decoded, in a thread of its own, and its
positions are committed batch by batch.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import compare, parser, report
from benchmarks.processor_fold import outcomes, trajectories
from unstable_stream import Context, consumer
from unstable_stream.archive import open_archive
from unstable_stream.events import Event, decode_event
from unstable_stream.history.hindsight.replay import copy_into, write_lines
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.streams.ordered_history import (
    ArchiveHistory,
    History,
    LogHistory,
    Slice,
    merged,
)
from unstable_stream.services.streams.plugins import Plugin
from unstable_stream.services.streams.plugins.host import PluginCounters, run_plugin
from unstable_stream.services.workers.archiver import run_archiver

ALL = Slice()


async def make_log(data: DataDir, games: int) -> None:
    """Fill a log with games of the size a language model of some hundred tokens a turn makes."""
    encoded = [*trajectories(games, 6, 200, 100, 4), *outcomes(games, 2)]
    async with LocalLog.open(data.log, synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        for start in range(0, len(encoded), 500):
            await log.append([record_from_event(decode_event(body)) for body in encoded[start : start + 500]])


async def make_archive(data: DataDir) -> None:
    """Archive the log."""
    stop = asyncio.Event()
    stop.set()
    async with LocalLog.open(data.log) as log:
        await run_archiver(log, data.archive, stop=stop)


def timed(work: Callable[[], Awaitable[int]]) -> float:
    """Records a second."""

    async def run() -> float:
        began = time.perf_counter()
        count = await work()
        return count / (time.perf_counter() - began)

    return asyncio.run(run())


async def read_bare(data: DataDir) -> int:
    """Read and decode everything."""
    count = 0
    async with LocalLog.open(data.log) as log:
        async for record in read_to_end(log, tuple(await log.topics())):
            event_from_record(record)
            count += 1
    return count


async def read_archive_bare(data: DataDir) -> int:
    """Fetch the rows of the raw table and decode each value."""
    count = 0
    with open_archive(data.archive) as connection:
        connection.execute('SELECT topic, "partition", "offset", key, encode(value) FROM events')
        while rows := connection.fetchmany(1000):
            for row in rows:
                decode_event(row[4])
            count += len(rows)
    return count


async def merge(open_history: Callable[[], History]) -> int:
    """Merge everything and drop it."""
    history = open_history()
    count = 0
    async for piece in merged(history, ALL):
        count += len(piece.records)
    await history.close()
    return count


async def print_lines(data: DataDir) -> int:
    """Replay to nowhere as lines."""
    history = LogHistory(LocalLog.open(data.log))
    count = await write_lines(merged(history, ALL), len)
    await history.close()
    return count


async def copy(data: DataDir) -> int:
    """Replay into a fresh log."""
    with tempfile.TemporaryDirectory() as directory:
        async with (
            LocalLog.open(data.log) as source,
            LocalLog.open(Path(directory) / "log.sqlite", synchronous="NORMAL") as target,
        ):
            topics = dict(await source.topics())
            return await copy_into(merged(LogHistory(source), ALL), source, target, topics)


def do_nothing(topics: tuple[str, ...], state: Callable[[], object] | None) -> Plugin:
    """A plug-in that is given everything and does nothing; with a state, it counts."""

    @consumer(topics=topics, name="nothing", state=state)
    def nothing(event: Event, context: Context) -> None:
        if state is not None:
            context.state["n"] = context.state.get("n", 0) + 1

    return nothing


async def consume(data: DataDir, *, stateful: bool) -> int:
    """Run a plug-in over everything, from the beginning."""
    counters = PluginCounters()
    async with LocalLog.open(data.log, synchronous="NORMAL") as log:
        ends = {topic: await log.end_offsets(topic) for topic in await log.topics()}
        topics = tuple(topic for topic, of_topic in ends.items() if any(of_topic.values()))
        plugin = do_nothing(topics, dict if stateful else None)
        await run_plugin(
            log, plugin, data, stop=asyncio.Event(), until_end=True, reset=True, counters=counters
        )
    return counters.handled


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--data", type=Path, default=None, help="take this data directory's log")
    arguments.add_argument("--games", type=int, default=3000, help="of the made-up log")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = DataDir(Path(directory))
        if options.data is None:
            asyncio.run(make_log(data, options.games))
        else:
            shutil.copy(options.data / "log.sqlite", data.log)
        asyncio.run(make_archive(data))
        from_log = partial(merge, lambda: LogHistory(LocalLog.open(data.log)))
        from_archive = partial(merge, lambda: ArchiveHistory(data.archive))
        bare = partial(read_bare, data)
        bare_archive = partial(read_archive_bare, data)
        rows: list[tuple[str, Callable[[], Awaitable[int]], Callable[[], Awaitable[int]]]] = [
            ("replay, merged in order", from_log, bare),
            ("replay, as JSON lines", partial(print_lines, data), bare),
            ("replay, into another log", partial(copy, data), bare),
            ("replay from the archive", from_archive, bare_archive),
            ("consume, a plug-in without state", partial(consume, data, stateful=False), bare),
            ("consume, a plug-in with state", partial(consume, data, stateful=True), bare),
        ]
        results = [
            compare(name, partial(timed, ours), partial(timed, base), unit="records/s", rounds=options.rounds)
            for name, ours, base in rows
        ]
    report("Replay and plug-ins against bare reading and decoding", results, options.json)


if __name__ == "__main__":
    main()
