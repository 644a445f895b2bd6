"""The consumer loop by itself, on a real local log: batches, ends, where it reads on, what is gone."""

import asyncio
from collections.abc import AsyncIterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.processes import until
from unstable_stream.errors import LogUnavailableError, OffsetOutOfRangeError
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Positions, Record, StoredRecord, TopicPartition, TopicSpec
from unstable_stream.services.streams.consumer import Pace, is_processed, run_consumer

TOPIC = "numbers"
ZERO = TopicPartition(TOPIC, 0)
ONE = TopicPartition(TOPIC, 1)


@dataclass
class Notes:
    """A sink that notes what it is given."""

    begin: dict[TopicPartition, int] = field(default_factory=dict)
    """Where partitions go on; otherwise at 0."""
    closed: set[TopicPartition] = field(default_factory=set)
    """Partitions that it does not open."""
    batches: list[list[str]] = field(default_factory=list)
    open: dict[TopicPartition, int] = field(default_factory=dict)
    flushed: list[int] = field(default_factory=list)
    """The number of batches there had been at each flush."""
    gone: list[str] = field(default_factory=list)
    left: list[Positions] = field(default_factory=list)
    is_closed: bool = False
    busy: bool = False

    def positions(self) -> Positions:
        return self.open

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        gained = {at: self.begin.get(at, 0) for at in assigned - self.open.keys() - self.closed}
        self.open |= gained
        return gained

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> None:
        if records:
            self.batches.append([str(record) for record in records])

    async def flush(self, read_up_to: Positions) -> None:
        self.flushed.append(len(self.batches))

    def deleted(self, error: OffsetOutOfRangeError) -> None:
        self.gone.append(str(error))
        self.open.clear()

    async def may_finish(self, other_ends: Positions) -> bool:
        return False

    async def close(self) -> None:
        self.is_closed = True

    @property
    def seen(self) -> list[str]:
        return sorted(place for batch in self.batches for place in batch)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite") as opened:
        await opened.create_topics([TopicSpec(TOPIC, 2)])
        yield opened


async def fill(log: LocalLog, count: int, partition: int = 0, size: int = 1) -> None:
    await log.append([Record(TOPIC, "k", b"x" * size, partition=partition) for _ in range(count)])


async def consume(
    log: LocalLog, sink: Notes, pace: Pace | None = None, stop: asyncio.Event | None = None
) -> None:
    """Run until the end, or, with ``stop``, until it is set and all is drained."""
    consumer = await log.consumer([TOPIC], "group")
    async with asyncio.timeout(120):
        await run_consumer(
            log,
            [TOPIC],
            consumer,
            sink,
            stop=stop or asyncio.Event(),
            drain=stop is not None,
            until_end=stop is None,
            pace=pace,
        )


def places(partition: int, first: int, end: int) -> list[str]:
    return sorted(f"{TOPIC}[{partition}]@{offset}" for offset in range(first, end))


@pytest.mark.parametrize(
    ("count", "size", "pace", "batches"),
    [
        (25, 1, Pace(max_records=10), [10, 10, 5]),
        (2500, 100, Pace(max_records=5000, max_bytes=150_000), [2000, 500]),
    ],
)
async def test_batches_are_as_large_as_they_may_be(
    log: LocalLog, count: int, size: int, pace: Pace, batches: list[int]
) -> None:
    await fill(log, count, size=size)
    sink = Notes()
    await consume(log, sink, pace)
    assert [len(batch) for batch in sink.batches] == batches
    assert sink.seen == places(0, 0, count)
    assert sink.flushed[-1] == len(batches)
    assert sink.is_closed


async def test_it_ends_at_the_ends_there_were_although_more_comes(log: LocalLog) -> None:
    await fill(log, 8)

    class Feeding(Notes):
        async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> None:
            await fill(log, len(records))
            await super().process(records, read_up_to)

    sink = Feeding()
    await consume(log, sink, Pace(max_records=4))
    assert sink.seen == places(0, 0, 8)


async def test_few_records_wait_for_more_where_a_batch_is_dear_but_not_after_a_stop(log: LocalLog) -> None:
    await fill(log, 1)
    sink, stop = Notes(), asyncio.Event()
    running = asyncio.ensure_future(consume(log, sink, Pace(wait_s=0.01, gather_s=3600), stop))
    await until(lambda: bool(sink.open))
    await fill(log, 5)
    stop.set()
    await running
    assert sink.batches == [places(0, 0, 6)]


async def test_a_partition_is_read_from_where_the_sink_goes_on(log: LocalLog) -> None:
    await fill(log, 10)
    await fill(log, 4, partition=1)
    before = await log.consumer([TOPIC], "group")
    await before.poll()
    await before.commit({ZERO: 9, ONE: 0})
    await before.close()
    sink = Notes(begin={ZERO: 3})
    await consume(log, sink)
    assert sink.seen == sorted(places(0, 3, 10) + places(1, 0, 4))


class _Positions(Notes):
    """A sink that believes the positions that it is told, as the archive does."""

    async def follow(self, assigned: Set[TopicPartition]) -> Positions:
        self.open = {at: offset for at, offset in self.open.items() if at in assigned}
        return await super().follow(assigned)

    async def process(self, records: Sequence[StoredRecord], read_up_to: Positions) -> None:
        await super().process(records, read_up_to)
        self._check(read_up_to)

    async def flush(self, read_up_to: Positions) -> None:
        self._check(read_up_to)

    def _check(self, read_up_to: Positions) -> None:
        for at, offset in read_up_to.items():
            assert set(places(at.partition, 0, offset)) <= set(self.seen), "told of what it was not given"


async def test_a_position_that_could_not_be_set_passes_over_nothing(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is lost after records were read that are to be read again from the sink's position."""
    await fill(log, 5)
    await fill(log, 5, partition=1)
    consumer, sink, lost = await log.consumer([TOPIC], "group"), _Positions(), list[Positions]()
    seek = consumer.seek

    async def lose_one(positions: Positions) -> None:
        if ONE in positions and not lost:
            lost.append(positions)
            raise LogUnavailableError("the request was lost")
        await seek(positions)

    monkeypatch.setattr(consumer, "seek", lose_one)
    async with asyncio.timeout(120):
        await run_consumer(log, [TOPIC], consumer, sink, stop=asyncio.Event(), drain=False, until_end=True)
    assert lost
    assert sink.seen == [*places(0, 0, 5), *places(1, 0, 5)]


async def test_it_does_not_end_while_a_partition_is_not_open(log: LocalLog) -> None:
    await fill(log, 3)
    sink = Notes(closed={ONE})
    running = asyncio.ensure_future(consume(log, sink, Pace(wait_s=0.01)))
    await until(lambda: len(sink.flushed) >= 3)
    assert not running.done()
    sink.closed.clear()
    await running


async def test_records_before_the_start_of_a_group_need_not_be_processed(log: LocalLog) -> None:
    await fill(log, 3)
    ends = {at: end for at, end in (await log.end_offsets("numbers")).items() if end}
    assert not await is_processed(log, "new", ends)
    assert await is_processed(log, "new", ends, ends)


async def test_records_that_are_gone_are_told_and_reading_begins_anew(log: LocalLog) -> None:
    await fill(log, 6)
    await log.delete_before({ZERO: 4})

    class Mending(Notes):
        def deleted(self, error: OffsetOutOfRangeError) -> None:
            super().deleted(error)
            self.begin[ZERO] = 4

    sink = Mending()
    await consume(log, sink)
    assert len(sink.gone) == 1
    assert sink.seen == places(0, 4, 6)
