"""History streams in original order from both logs and the archive: the same slice, always the same."""

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.services.streams.plugin_bench import PluginBench
from tests.services.streams.plugin_bench import bench as bench  # a fixture
from tests.services.streams.plugin_bench import local as local  # a fixture
from unstable_stream.archive import records
from unstable_stream.errors import ArchiveError, ConfigError, UnknownTopicError
from unstable_stream.events import GameOutcome, Metrics, Trajectory
from unstable_stream.log.port import Record, StoredRecord, TopicPartition
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams import ordered_history as history
from unstable_stream.services.streams.ordered_history import (
    ArchiveHistory,
    History,
    LogHistory,
    RecordFilter,
    Slice,
    merged,
    parse_condition,
)
from unstable_stream.services.workers.archiver import run_archiver

pytestmark = pytest.mark.longer

ALL = Slice()


async def stream(source: History, wanted: Slice = ALL) -> list[StoredRecord]:
    return [record async for piece in merged(source, wanted) for record in piece.records]


async def archived(bench: PluginBench) -> ArchiveHistory:
    stop = asyncio.Event()
    stop.set()
    topics = [name for name in await bench.log.topics() if name.endswith(bench.suffix)]
    await run_archiver(bench.log, bench.data.archive, topics=topics, stop=stop)
    return ArchiveHistory(bench.data.archive)


def own(bench: PluginBench) -> Slice:
    """The topics of this test, on a log that others use too."""
    return Slice(
        topics=tuple(bench.topic(name) for name in ("games", "trajectories", "steps", "game-outcomes"))
    )


def slowly_merged(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """The same order by the obvious way: again and again the partition whose next record comes first."""
    queues: dict[tuple[str, int], list[StoredRecord]] = {}
    for record in sorted(records, key=lambda record: record.offset):
        queues.setdefault((record.topic, record.partition), []).append(record)
    latest = dict.fromkeys(queues, 0)
    rank = {name: topic.order for name, topic in load_topics().items()}
    merged_records = []
    while any(queues.values()):
        for where, queue in queues.items():
            if queue:
                latest[where] = max(latest[where], queue[0].timestamp_ms)
        first = min(
            (where for where, queue in queues.items() if queue),
            key=lambda where: (latest[where], rank.get(where[0], 99), where),
        )
        merged_records.append(queues[first].pop(0))
    return merged_records


async def test_log_and_archive_stream_the_same_in_order(bench: PluginBench) -> None:
    await bench.publish(made_up_run(bench.run_id))
    wanted = own(bench)
    from_log = await stream(LogHistory(bench.log), wanted)
    assert len(from_log) == 38 + 38 + 46 + 41
    assert from_log == slowly_merged(from_log)
    assert await stream(await archived(bench), wanted) == from_log


async def test_times_that_go_back_and_small_pieces_change_nothing(
    local: PluginBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_PIECE_RECORDS", 7)
    monkeypatch.setattr(history, "_BATCH_RECORDS", 5)
    rng = random.Random(1)
    events = [
        msgspec.structs.replace(local.record(event), timestamp_ms=rng.randint(1, 60))
        for event in made_up_run(local.run_id)
    ]
    await local.log.append(events)
    from_log = await stream(LogHistory(local.log))
    assert len(from_log) == len(events)
    assert from_log == slowly_merged(from_log)


async def test_no_partition_is_read_far_ahead_of_its_use(
    local: PluginBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition holds the early half and another the late one: the late one waits unread."""
    monkeypatch.setattr(history, "_PIECE_RECORDS", 10)
    monkeypatch.setattr(history, "_BATCH_RECORDS", 10)
    early = [Record("steps", "k", b"{}", timestamp_ms=1 + i, partition=0) for i in range(200)]
    late = [Record("steps", "k", b"{}", timestamp_ms=1000 + i, partition=1) for i in range(200)]
    await local.log.append([*late, *early])
    count = 0
    async for piece in merged(LogHistory(local.log), Slice()):
        count += len(piece.records)
        assert piece.read - count <= 20
    assert count == 400


async def test_an_end_is_what_it_was_at_the_beginning(local: PluginBench) -> None:
    await local.publish(made_up_run("a"))
    count = 0
    async for piece in merged(LogHistory(local.log), Slice()):
        if not count:
            await local.publish(made_up_run("b"))
        count += len(piece.records)
    assert count == len(made_up_run("a"))


async def test_a_record_that_is_no_event_is_streamed_as_it_is(local: PluginBench) -> None:
    await local.log.append([Record("steps", "k", b"\xff{", {"h": b"1"}, 5)])
    from_log = await stream(LogHistory(local.log), Slice(topics=("steps",)))
    assert [(record.value, record.headers) for record in from_log] == [(b"\xff{", {"h": b"1"})]
    assert await stream(await archived(local), Slice(topics=("steps",))) == from_log


# -- what is wanted -------------------------------------------------------------------------------


async def chosen(bench: PluginBench, *conditions: str, **named: int | str) -> list[StoredRecord]:
    wanted = RecordFilter(conditions=[parse_condition(text) for text in conditions], **named)  # type: ignore[arg-type]
    return await stream(LogHistory(bench.log), Slice(filter=wanted))


async def test_by_run_time_and_field(local: PluginBench) -> None:
    run_a, run_b = made_up_run("a"), made_up_run("b")
    await local.publish([*run_a, *run_b])
    assert len(await chosen(local, run_id="a")) == len(run_a)
    moments = sorted(event.occurred_at_ms for event in run_a)
    first, last = moments[10], moments[100]
    inside = sum(first <= event.occurred_at_ms < last for event in run_a)
    assert len(await chosen(local, run_id="a", from_ms=first, to_ms=last)) == inside
    outcomes = [event for event in run_a if isinstance(event, GameOutcome)]
    assert len(await chosen(local, "type=game-outcome", "run=a")) == len(outcomes)
    assert len(await chosen(local, "type=game-outcome", "split=eval", run_id="b")) == 14
    third = [e for e in outcomes if any(seat.model_uid == "ckpt-000003" for seat in e.seats)]
    assert len(await chosen(local, "type=game-outcome", "model=ckpt-*3", run_id="a")) == len(third) == 6
    others = len(run_a) - sum(isinstance(event, Trajectory) for event in run_a)
    assert len(await chosen(local, "type!=trajectory", run_id="a")) == others
    assert len(await chosen(local, "turns.turn_index=2", "type=trajectory", run_id="a")) > 0
    assert await chosen(local, "turns.turn_index=99") == []


async def test_a_record_without_headers_is_known_by_its_body(local: PluginBench) -> None:
    events = made_up_run("a", updates=1)
    await local.log.append([msgspec.structs.replace(local.record(event), headers={}) for event in events])
    assert len(await chosen(local, run_id="a")) == len(events)
    assert await chosen(local, run_id="b") == []


async def test_by_offsets(local: PluginBench) -> None:
    await local.publish(made_up_run(local.run_id))
    at = TopicPartition("game-outcomes", 0)
    for start, end, expected in ((10, 13, [10, 11, 12]), (36, None, [36, 37]), (None, 2, [0, 1])):
        records = await stream(LogHistory(local.log), Slice(ranges={at: (start, end)}))
        assert [(record.topic, record.offset) for record in records] == [
            ("game-outcomes", o) for o in expected
        ]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Slice(topics=("nonsense",)), r"no topic 'nonsense' here; the topics are checkpoints"),
        (Slice(ranges={TopicPartition("runs", 7): (0, 1)}), r"no partition runs\[7\] here"),
    ],
)
async def test_what_is_not_there_is_an_error(local: PluginBench, wanted: Slice, says: str) -> None:
    with pytest.raises(UnknownTopicError, match=says):
        await stream(LogHistory(local.log), wanted)


def test_a_condition_needs_a_key_and_a_value() -> None:
    for text in ("env", "=x", "!=x"):
        with pytest.raises(ConfigError, match="expected KEY=VALUE"):
            parse_condition(text)


async def test_an_archive_of_two_logs_must_be_told_which(local: PluginBench, tmp_path: Path) -> None:
    await local.publish(made_up_run("a", updates=1))
    (await archived(local))
    other = await PluginBench.open("local", tmp_path / "other")
    other = dataclasses.replace(other, data=local.data)
    await other.publish([Metrics(event_id="m", run_id="b", occurred_at_ms=1, source="s")])
    stop = asyncio.Event()
    stop.set()
    await run_archiver(other.log, local.data.archive, stop=stop)
    log_id = await other.log.log_id()
    await other.close()
    with pytest.raises(ArchiveError, match=r"holds the records of 2 logs, choose one with --log-id"):
        ArchiveHistory(local.data.archive)
    (only,) = await stream(ArchiveHistory(local.data.archive, log_id))
    assert only.headers["ce_id"] == b"m"


async def test_a_reader_that_pauses_does_not_keep_writers_from_the_archive(
    local: PluginBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_PIECE_RECORDS", 5)
    monkeypatch.setattr(history, "_BATCH_RECORDS", 5)
    monkeypatch.setattr(records, "_LONGEST_HOLD_S", 0.05)
    events = made_up_run(local.run_id)
    await local.publish(events)
    source = await archived(local)
    pieces = merged(source, Slice(topics=("steps",)))
    first = await anext(pieces)
    # While the reader has read some and not the rest, somebody else writes.
    await local.publish(made_up_run("another"))
    async with asyncio.timeout(120):
        await archived(local)
    rest = [record async for piece in pieces for record in piece.records]
    assert len(first.records) == 5
    assert len(rest) == 41
