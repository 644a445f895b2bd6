"""Retention of the local log: what expired goes, what the archive or a group still needs stays."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.builders import made
from tests.services.workers.archiving import Archiver, archive_all, publish
from unstable_stream.archive import query
from unstable_stream.events import RunFinished, RunResumed, Step, now_ms
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Positions
from unstable_stream.log.reading import ends_of
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.services.workers.retention import Retention, expired_records

_OLD = made_up_run()
"""Of 2023: steps and metrics have expired."""
_STEPS = sum(isinstance(event, Step) for event in _OLD)


@pytest.fixture
async def log(log: LocalLog) -> LocalLog:
    await publish(log, _OLD)
    return log


async def _ends(log: EventLog) -> Positions:
    return await ends_of(log, load_topics())


async def _records(log: EventLog, topic: str) -> int:
    ends = await log.end_offsets(topic)
    return sum(ends.values()) - sum((await log.beginning_offsets(topic)).values())


async def test_only_topics_with_a_retention_expire(log: LocalLog) -> None:
    found = await expired_records(log, await _ends(log), now_ms())
    assert {each.at.topic for each in found} == {"steps", "metrics"}
    assert sum(each.records for each in found if each.at.topic == "steps") == _STEPS
    assert not any(each.held_back for each in found)


async def test_what_is_young_stays_and_what_lies_behind_it(log: LocalLog) -> None:
    now = now_ms()
    steps = [event for event in made_up_run("run-b") if isinstance(event, Step)]
    await publish(log, [msgspec.structs.replace(step, occurred_at_ms=now) for step in steps])
    await publish(log, steps)  # an old record behind a young one does not go before it
    found = await expired_records(log, await _ends(log), now)
    assert sum(each.records for each in found if each.at.topic == "steps") == _STEPS


async def test_what_is_not_archived_stays(log: LocalLog) -> None:
    ends = {at: end for at, end in (await _ends(log)).items() if at.topic == "steps"}
    most = max(ends, key=lambda at: ends[at])
    found = await expired_records(log, ends | {most: 2}, now_ms())
    held = {each.at: each for each in found if each.held_back}
    assert (held[most].until, held[most].held_back, held[most].held_by) == (2, ends[most] - 2, "the archive")
    assert not any(each.records for each in found if each.at.topic == "metrics")


async def test_what_a_group_still_needs_stays_until_its_run_is_over(log: LocalLog) -> None:
    ends = await log.end_offsets("steps")
    most = max(ends, key=lambda at: ends[at])
    for group in ("plug-in/run-b", "reward-processor/run-a", "archiver-of-another-archive"):
        consumer = await log.consumer(["steps"], group)
        await consumer.poll(timeout_s=5)
        await consumer.commit({most: 1})
        await consumer.close()
    assert any(isinstance(event, RunFinished) and event.run_id == "run-a" for event in _OLD)
    (held,) = [each for each in await expired_records(log, await _ends(log), now_ms()) if each.held_back]
    assert (held.at, held.until, held.held_by) == (most, 1, "plug-in/run-b")
    found = await expired_records(log, await _ends(log), now_ms(), ["plug-in/run-b"])
    assert not any(each.held_back for each in found)


async def test_a_group_of_a_run_that_was_resumed_holds_back_again(log: LocalLog) -> None:
    steps = await log.consumer(["steps"], "plug-in/run-a")
    await steps.poll(max_records=1)
    await steps.commit(steps.positions())
    assert not any(each.held_back for each in await expired_records(log, await _ends(log), now_ms()))
    await publish(log, [made(RunResumed, run_id="run-a", occurred_at_ms=now_ms())])
    found = await expired_records(log, await _ends(log), now_ms())
    assert {each.at.topic for each in found if each.held_back} == {"steps"}


async def test_the_archiver_applies_it_while_it_runs(log: LocalLog, tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    async with Archiver(log, path, retention=Retention(log, first_s=0, interval_s=0)):
        while await _records(log, "steps") or await _records(log, "metrics"):
            await asyncio.sleep(0.02)
    assert await _records(log, "trajectories") > 0
    # The archive has what the log has no longer, and goes on.
    await publish(log, made_up_run("run-b"))
    await archive_all(log, path)
    assert query(path, "SELECT count(*) FROM steps").rows == [(2 * _STEPS,)]


async def test_saved_states_of_runs_that_ended_long_ago_are_forgotten(log: LocalLog, tmp_path: Path) -> None:
    producer = await log.producer("a processor")
    async with producer.transaction() as transaction:
        await transaction.save("ratings/game-outcomes/0", {"run/run-a": b"1", "run/run-b": b"1"})
        await transaction.save("ratings/run-a/game-outcomes/0", {"position": b"1", "run/run-a": b"1"})
    await producer.close()
    async with Archiver(log, tmp_path / "a.duckdb", retention=Retention(log, first_s=0)):
        while await log.saved_names() != {"ratings/game-outcomes/0": ["run/run-b"]}:
            await asyncio.sleep(0.02)


async def test_deleted_space_is_used_again_and_the_file_can_be_made_smaller(
    log: LocalLog, tmp_path: Path
) -> None:
    file = tmp_path / "log.sqlite"
    filler = [record_from_event(event) for event in _OLD if isinstance(event, Step)] * 40
    await log.append(filler)
    await log.shrink()
    full = file.stat().st_size
    await log.delete_before(await log.end_offsets("steps"))
    await log.append(filler)
    await log.delete_before(await log.end_offsets("steps"))
    before = await _ends(log)
    assert file.stat().st_size < 1.2 * full
    await log.shrink()
    assert file.stat().st_size < 0.5 * full
    assert await _ends(log) == before
