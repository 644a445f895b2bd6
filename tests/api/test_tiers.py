"""What expired in the log is read from the archive, and nobody notices."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from pathlib import Path

import pytest

import unstable_stream as us
from tests.archive.history import made_up_run
from tests.log.harness import topics_of_one_partition
from tests.places import on_log, recorded
from unstable_stream.api.place import Place
from unstable_stream.api.replaying import Replay
from unstable_stream.api.serving import archive
from unstable_stream.archive import query
from unstable_stream.events import encode_event
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, StoredRecord, TopicPartition
from unstable_stream.log.reading import TopicReader, ends_of, read_on, read_to_end
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.fork import find_fork
from unstable_stream.services.streams.tiered_log import with_archive

pytestmark = pytest.mark.longer

RUN = "run-tiers"


async def _everything(log: EventLog) -> dict[TopicPartition, list[StoredRecord]]:
    found: dict[TopicPartition, list[StoredRecord]] = {}
    async with aclosing(read_to_end(log, sorted(await log.topics()))) as records:
        async for record in records:
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    return found


async def _expire(log: LocalLog, share: float) -> Mapping[TopicPartition, int]:
    """Delete the first part of every partition."""
    ends = await ends_of(log, await log.topics())
    begins = {at: round(end * share) for at, end in ends.items()}
    await log.delete_before(begins)
    return begins


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_verify_audit_replay_and_fork_find_what_they_found_before(tmp_path: Path, share: float) -> None:
    def looked_at() -> list[object]:
        run = us.open_run(RUN, data=tmp_path)
        return [
            run.verify(games=False),
            run.audit(),
            [encode_event(event) for event in Replay(place, RUN)],
            place.ask_history(lambda log: find_fork(log, RUN, 0)),
        ]

    place = recorded(tmp_path, RUN)
    before = looked_at()
    assert before[0].ok  # type: ignore[attr-defined]
    steps = query(place.archive, "SELECT count(*) FROM steps").rows
    begins = on_log(tmp_path, lambda log: _expire(log, share))
    gone = {at.topic for at, begin in begins.items() if begin}
    assert {"runs", "trajectories", "steps", "game-outcomes", "learner-updates"} <= gone
    assert looked_at() == before
    assert query(place.archive, "SELECT count(*) FROM steps").rows == steps


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(DataDir(tmp_path).log, synchronous="NORMAL") as log:
        await log.create_topics(topics_of_one_partition())
        await log.append([record_from_event(event) for event in made_up_run()])
        await asyncio.to_thread(archive, Place.at(tmp_path))
        yield log


async def test_every_record_comes_as_it_was(log: LocalLog, tmp_path: Path) -> None:
    before = await _everything(log)
    await _expire(log, 0.7)
    await log.append([record_from_event(event) for event in made_up_run("run-b", updates=1)])
    after = await _everything(log)
    async with with_archive(log, DataDir(tmp_path).archive) as history:
        found = await _everything(history)
    for at, records in found.items():
        # The archived ones, then those that only the log has.
        assert records[: len(before.get(at, []))] == before.get(at, [])
        assert records[-len(after[at]) :] == after[at] if at in after else True
        assert [record.offset for record in records] == list(range(len(records)))


async def test_positions_and_parts_go_through_both(log: LocalLog, tmp_path: Path) -> None:
    at = TopicPartition("game-outcomes", 0)
    await log.delete_before({at: 20})
    async with with_archive(log, DataDir(tmp_path).archive) as history:
        assert (await history.beginning_offsets(at.topic))[at] == 0
        later = await history.consumer([at.topic])
        assert [record.offset for record in await later.poll(1)] == [0]
        await later.seek({at: 18})
        assert later.positions() == {at: 18}
        read = [record.offset async for piece in read_on(later, {at: 22}, max_records=1) for record in piece]
        assert read == [18, 19, 20, 21]
        await later.close()
        async with await TopicReader.open(history, [at.topic], starts={at: 10}, ends={at: 30}) as reader:
            first = [record.offset async for record in reader.read_to({at: 15})]
            rest = [record.offset async for record in reader.read_to(reader.ends)]
        assert first + rest == list(range(10, 30))


async def test_without_the_archive_a_partition_begins_where_the_log_does(
    log: LocalLog, tmp_path: Path
) -> None:
    await _expire(log, 0.5)
    begins = await log.beginning_offsets("steps")
    async with with_archive(log, tmp_path / "none.duckdb") as history:
        assert history is log
    # Another log's archive knows nothing of this one.
    async with LocalLog.open(tmp_path / "other" / "log.sqlite", synchronous="NORMAL") as other:
        await other.create_topics(topics_of_one_partition())
        await other.append([record_from_event(event) for event in made_up_run()])
        await _expire(other, 0.5)
        async with with_archive(other, DataDir(tmp_path).archive) as history:
            assert await history.beginning_offsets("steps") == begins
