"""Replayed history arrives when it is due and as it was, wherever it goes."""

import base64
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.archive.history import GAMES_PER_UPDATE, made_up_run
from tests.services.streams.plugin_bench import PluginBench, counting
from tests.services.streams.plugin_bench import local as local  # a fixture
from unstable_stream import Context, consumer
from unstable_stream.errors import ConfigError
from unstable_stream.events import GameOutcome, Metrics
from unstable_stream.history.hindsight.replay import copy_into, line_of, paced, rehearse
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record, StoredRecord, TopicSpec
from unstable_stream.log.reading import read_to_end
from unstable_stream.services.streams.ordered_history import LogHistory, Merged, Slice, merged

ALL = Slice()


class PretendClock:
    """Time passes only while somebody sleeps, or when work takes some."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 6))
        self.now += seconds


def at(*times_ms: int) -> list[StoredRecord]:
    return [StoredRecord("t", 0, offset, "k", b"{}", {}, moment) for offset, moment in enumerate(times_ms)]


async def pieces(*parts: Sequence[StoredRecord]) -> AsyncIterator[Merged]:
    for part in parts:
        yield Merged(part, 0)


@pytest.mark.parametrize(
    ("speed", "due"),
    [
        (1.0, [0.0, 0.0, 2.0, 12.0]),
        (10.0, [0.0, 0.0, 0.2, 1.2]),
        (0.5, [0.0, 0.0, 4.0, 24.0]),
        (None, [0.0] * 4),
    ],
)
async def test_records_come_out_when_they_are_due(speed: float | None, due: list[float]) -> None:
    clock = PretendClock()
    records = at(5_000, 5_000, 7_000, 17_000)
    out = [
        (record.offset, round(clock.now - 1000.0, 6))
        async for piece in paced(pieces(records[:3], records[3:]), speed, clock.time, clock.sleep)
        for record in piece.records
    ]
    assert out == list(enumerate(due))
    assert len(clock.slept) == len(set(due)) - 1, "no more than is needed"


async def test_a_time_that_goes_back_is_due_at_once_and_lost_time_is_made_up() -> None:
    clock = PretendClock()
    out = []
    async for piece in paced(pieces(at(1000, 2000, 500, 3000, 10_000)), 1.0, clock.time, clock.sleep):
        out += [record.offset for record in piece.records]
        if 1 in out and clock.now < 1004:
            clock.now += 5  # whoever takes the records was slow: the next two are late already
    assert out == [0, 1, 2, 3, 4]
    assert clock.slept == [1.0, 3.0]


# -- targets --------------------------------------------------------------------------------------


def test_a_line_holds_position_and_body_as_it_is() -> None:
    record = StoredRecord("steps", 3, 17, "kéy", b'{"a":\n[1, 2]}', {}, 5)
    line = line_of(record)
    assert b"\n" not in line
    place = {"topic": "steps", "partition": 3, "offset": 17}
    assert json.loads(line) == {**place, "timestamp_ms": 5, "key": "kéy", "event": {"a": [1, 2]}}


@pytest.mark.parametrize("value", [b"", b"{]", b'{"a":"\xff"}', b"\x00\x01"])
def test_what_is_no_json_is_base64(value: bytes) -> None:
    parsed = json.loads(line_of(StoredRecord("t", 0, 0, "", value, {}, 0)))
    assert base64.b64decode(parsed["value_base64"]) == value


async def test_a_copy_has_the_same_records_at_the_same_times(local: PluginBench, tmp_path: Path) -> None:
    events = made_up_run(local.run_id, updates=GAMES_PER_UPDATE)
    await local.publish(events)
    source = LogHistory(local.log)
    async with LocalLog.open(tmp_path / "copy.sqlite", synchronous="NORMAL") as target:
        topics = dict(await local.log.topics())
        assert await copy_into(merged(source, ALL), local.log, target, topics) == len(events)
        assert await target.topics() == topics
        original = [record async for piece in merged(source, ALL) for record in piece.records]
        copied = [record async for piece in merged(LogHistory(target), ALL) for record in piece.records]
        assert copied == original


async def test_a_topic_nobody_declared_is_copied_with_its_partitions(
    local: PluginBench, tmp_path: Path
) -> None:
    await local.log.create_topics([TopicSpec("notes", 3, cleanup_policy="compact")])
    await local.log.append([Record("notes", "k", b"not json", {"h": b"1"}, 7, partition=0)])
    async with LocalLog.open(tmp_path / "copy.sqlite", synchronous="NORMAL") as target:
        history = merged(LogHistory(local.log), Slice(topics=("notes",)))
        await copy_into(history, local.log, target, {"notes": 3})
        assert await target.topics() == {"notes": 3}
        assert (await target.topic_settings())["notes"].cleanup_policy == "compact"
        (record,) = [record async for record in read_to_end(target, ("notes",))]
        assert (record.value, record.headers, record.timestamp_ms) == (b"not json", {"h": b"1"}, 7)


async def test_a_log_is_not_copied_into_itself(local: PluginBench) -> None:
    await local.publish(made_up_run(local.run_id, updates=1))
    with pytest.raises(ConfigError, match="names the log that is replayed"):
        await copy_into(merged(LogHistory(local.log), ALL), local.log, local.log, {})


async def test_a_plugin_is_rehearsed_without_a_trace(local: PluginBench) -> None:
    """What it emits is what it would publish, and the log has neither metrics nor positions of it."""
    await local.publish(made_up_run(local.run_id))
    plugin = counting("")
    emitted: list[Metrics] = []
    done = await rehearse(merged(LogHistory(local.log), ALL), plugin, emitted.extend)
    assert (done.handled, done.emitted, done.failed) == (46, 46, 0)
    assert await local.metrics(plugin) == {}
    assert await local.log.groups() == []
    assert not (local.data.root / "plugins").exists()
    await local.run(plugin)
    assert await local.metrics(plugin) == {event.event_id: event.values["n"] for event in emitted}


async def test_a_rehearsal_counts_failures_and_goes_on(local: PluginBench) -> None:
    @consumer(topics=["game-outcomes"], name="fails", state=dict)
    def fails(event: GameOutcome, context: Context) -> None:
        context.state["seen"] = context.state.get("seen", 0) + 1
        if event.game_index in (3, 4) and event.split == "train":
            raise LookupError("nowhere")
        context.emit("seen", context.state["seen"])

    await local.publish(made_up_run(local.run_id))
    emitted: list[Metrics] = []
    done = await rehearse(merged(LogHistory(local.log), ALL), fails, emitted.extend)
    assert (done.handled, done.failed) == (36, 2)
    assert [event.values["seen"] for event in emitted] == [float(n) for n in range(1, 37)]
    assert "game-outcomes[0]@" in done.first_failure
    assert "LookupError: nowhere (at test_replay.py:" in done.first_failure
