"""Contract of every event log: states that are saved in transactions."""

import asyncio
import secrets

import pytest

from tests.log.harness import DEADLINE_S, LogHarness, read, records
from unstable_stream.errors import FencedError
from unstable_stream.log.port import EventLog, Producer, TopicPartition


def _scope() -> str:
    return f"scope-{secrets.token_hex(6)}"


async def _save(producer: Producer, scope: str, states: dict[str, bytes]) -> None:
    async with asyncio.timeout(DEADLINE_S), producer.transaction() as transaction:
        await transaction.save(scope, states)


async def test_states_are_saved_with_records_and_positions(harness: LogHarness, event_log: EventLog) -> None:
    source, results, group, scope = await harness.topic(), await harness.topic(), harness.group(), _scope()
    await event_log.append(records(source, ["in"]))
    producer, other = await event_log.producer(group), await harness.open()
    at = TopicPartition(source, 0)
    async with producer.transaction() as transaction:
        await transaction.append(records(results, ["out"]))
        await transaction.commit_positions(group, {at: 1})
        await transaction.save(scope, {"a": b"1", "run/b": b"\x00\xff"})
        assert await other.saved(scope) == {}
    assert await other.saved(scope) == {"a": b"1", "run/b": b"\x00\xff"}
    assert await other.committed_positions(group) == {at: 1}
    assert [record.value for record in await read(await other.consumer([results]), 1)] == [b"out"]


async def test_a_state_replaces_the_one_of_its_name(harness: LogHarness, event_log: EventLog) -> None:
    scope, producer = _scope(), await event_log.producer(harness.group())
    await _save(producer, scope, {"a": b"1", "b": b"1", "c": b"1"})
    await _save(producer, scope, {"b": b"2", "d": b"2"})
    await _save(producer, scope, {"c": b"", "d": b"", "never": b""})
    assert await event_log.saved(scope) == {"a": b"1", "b": b"2"}
    assert await event_log.saved(scope, ["b", "c", "unknown"]) == {"b": b"2"}
    assert await event_log.saved(scope, []) == {}
    await _save(producer, scope, {"c": b"3"})
    assert await event_log.saved(scope, ["c"]) == {"c": b"3"}


async def test_scopes_are_apart(harness: LogHarness, event_log: EventLog) -> None:
    scope, producer = _scope(), await event_log.producer(harness.group())
    assert await event_log.saved(scope) == {}
    scopes = [f"{scope}/topic/{number}" for number in range(12)]  # some share a partition on Kafka
    for number, each in enumerate(scopes):
        await _save(producer, each, {"position": b"%d" % number})
    for number, each in enumerate(scopes):
        assert await event_log.saved(each) == {"position": b"%d" % number}
    assert await event_log.saved(f"{scope}/topic") == {}


async def test_what_is_not_committed_is_not_saved(harness: LogHarness, event_log: EventLog) -> None:
    scope, group = _scope(), harness.group()
    producer = await event_log.producer(group)
    await _save(producer, scope, {"a": b"1"})

    async def abort() -> None:
        async with producer.transaction() as transaction:
            await transaction.save(scope, {"a": b"aborted"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await abort()
    assert await event_log.saved(scope) == {"a": b"1"}
    later = await event_log.producer(group)
    with pytest.raises(FencedError):
        await _save(producer, scope, {"a": b"fenced"})
    assert await event_log.saved(scope) == {"a": b"1"}
    await _save(later, scope, {"a": b"2"})
    assert await event_log.saved(scope) == {"a": b"2"}


async def test_a_state_may_be_large(harness: LogHarness, event_log: EventLog) -> None:
    scope, producer = _scope(), await event_log.producer(harness.group())
    large = secrets.token_bytes(8 * 1024 * 1024)
    await _save(producer, scope, {"large": large, "small": b"1"})
    assert (await event_log.saved(scope))["large"] == large


async def test_the_names_of_all_saved_states_are_told(harness: LogHarness, event_log: EventLog) -> None:
    first, second, third, producer = _scope(), _scope(), _scope(), await event_log.producer(harness.group())
    await _save(producer, first, {"a": b"1", "b": b"1"})
    await _save(producer, second, {"a": b"1"})
    await _save(producer, third, {"c": b"1"})
    await _save(producer, first, {"b": b""})
    await _save(producer, third, {"c": b""})
    names = await event_log.saved_names()  # on a broker also those of other tests
    assert (names[first], names[second]) == (["a"], ["a"])
    assert third not in names
