"""A run is read from the offsets at which it began."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.builders import made
from tests.log.harness import topics_of_one_partition
from tests.model_pool.outcomes import RUN
from tests.services.streams.hosted_games import OTHER_RUN, games
from unstable_stream.errors import ServiceError
from unstable_stream.events import GameOutcome, RunStarted
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, StoredRecord, TopicPartition
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.history import run_started
from unstable_stream.runs.recording import start_run
from unstable_stream.runs.starts import check_whole, recorded_starts, run_events, run_starts, within

OUTCOMES = TopicPartition(GameOutcome.TOPIC, 0)
CONFIG = parse_config({"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]})


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    """An older run with a history, and one that began after it."""
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        await opened.create_topics(topics_of_one_partition())
        await start_run(opened, CONFIG, OTHER_RUN)
        await opened.append(games(0, 50, OTHER_RUN, OTHER_RUN))
        await start_run(opened, CONFIG, RUN)
        yield opened


class _Counting:
    """A log that counts the records its consumers return."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.topics_read: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def consumer(self, *arguments: Any, **named: Any) -> Any:
        consumer = await self._log.consumer(*arguments, **named)
        poll = consumer.poll

        async def counted(*arguments: Any, **named: Any) -> list[StoredRecord]:
            records: list[StoredRecord] = await poll(*arguments, **named)
            self.topics_read += [record.topic for record in records]
            return records

        consumer.poll = counted  # type: ignore[method-assign]
        return consumer


async def test_a_run_records_the_ends_at_its_start(log: LocalLog) -> None:
    first, second = await run_started(log, OTHER_RUN), await run_started(log, RUN)
    assert first.log_id == second.log_id == await log.log_id()
    assert first.start_offsets.keys() == second.start_offsets.keys() == load_topics().keys()
    assert not any(any(ends) for ends in first.start_offsets.values())
    assert second.start_offsets["game-outcomes"] == (50,)
    ends = await log.end_offsets("trajectories")
    assert second.start_offsets["trajectories"] == tuple(ends[at] for at in sorted(ends))


async def test_the_events_of_a_new_run_are_read_without_those_before_it(log: LocalLog) -> None:
    await log.append(games(0, 3, RUN, OTHER_RUN))
    counting: Any = _Counting(log)
    found = [event async for _, event in run_events(counting, (GameOutcome.TOPIC, "steps"), RUN)]
    assert [event.event_id for event in found] == [
        event.event_id async for _, event in run_events(log, (GameOutcome.TOPIC,), RUN)
    ]
    assert len(found) == 3
    assert counting.topics_read.count("game-outcomes") == 3
    older = [event async for _, event in run_events(log, (GameOutcome.TOPIC,), OTHER_RUN)]
    assert len(older) == 50


async def test_offsets_of_another_log_mean_nothing(log: LocalLog) -> None:
    began = await run_started(log, RUN)
    assert recorded_starts(began, began.log_id, (GameOutcome.TOPIC,)) == {OUTCOMES: 50}
    assert recorded_starts(began, "another", (GameOutcome.TOPIC,)) == {}
    assert recorded_starts(None, began.log_id, (GameOutcome.TOPIC,)) == {}
    assert recorded_starts(made(RunStarted, run_id=RUN), "", (GameOutcome.TOPIC,)) == {}, "of version 0.1"
    assert await run_starts(log, "unknown", (GameOutcome.TOPIC,)) == {}


async def test_reading_begins_at_what_is_kept(log: LocalLog) -> None:
    await log.append(games(0, 9, RUN, OTHER_RUN))
    assert await run_starts(log, RUN, (GameOutcome.TOPIC,)) == {OUTCOMES: 50}
    await check_whole(log, RUN, (GameOutcome.TOPIC,))
    await log.delete_before({OUTCOMES: 53})
    assert await run_starts(log, RUN, (GameOutcome.TOPIC,)) == {OUTCOMES: 53}
    with pytest.raises(ServiceError, match=r"game-outcomes\[0\]: offsets 50 to 52 are gone"):
        await check_whole(log, RUN, (GameOutcome.TOPIC,))
    assert await within(log, {OUTCOMES: 55}) == {OUTCOMES: 55}
    assert len([event async for _, event in run_events(log, (GameOutcome.TOPIC,), RUN)]) == 6
