"""How far groups are behind, in records, on logs whose offsets hold more than records."""

import secrets

import pytest

from unstable_stream.log.port import EventLog, Record, TopicPartition, TopicSpec
from unstable_stream.services.tracking.lag import Lag, live_groups, measure_lag


@pytest.fixture
async def topic(any_log: EventLog) -> str:
    name = f"lag-{secrets.token_hex(6)}"
    await any_log.create_topics([TopicSpec(name, 2)])
    return name


async def fill(log: EventLog, topic: str, partition: int, count: int) -> None:
    """One transaction per record: on Kafka a marker follows each."""
    producer = await log.producer(f"producer-{topic}-{partition}-{secrets.token_hex(2)}")
    for number in range(count):
        async with producer.transaction() as transaction:
            await transaction.append([Record(topic, "k", b"%d" % number, partition=partition)])
    await producer.close()


async def read_and_commit(log: EventLog, topic: str, group: str, count: int) -> None:
    """Commit behind ``count`` records of partition 0, as a processor does: the record's offset plus one."""
    reader = await log.consumer([topic])
    offsets: list[int] = []
    while len(offsets) < count:
        offsets += [each.offset for each in await reader.poll(timeout_s=5.0) if each.partition == 0]
    await reader.close()
    producer = await log.producer(f"producer-{group}")
    async with producer.transaction() as transaction:
        await transaction.commit_positions(group, {TopicPartition(topic, 0): sorted(offsets)[count - 1] + 1})
    await producer.close()


async def lag_of(log: EventLog, topic: str, group: str) -> dict[int, Lag]:
    return {each.at.partition: each for each in await measure_lag(log, [group], [topic, "no-such-topic"])}


@pytest.mark.parametrize(("read", "others"), [(5, 0), (2, 4)])
async def test_lag_counts_records_and_partitions_without_a_position_whatever_lies_at_the_end(
    any_log: EventLog, topic: str, read: int, others: int
) -> None:
    await fill(any_log, topic, 0, 5)
    await read_and_commit(any_log, topic, f"group-{topic}", read)
    await fill(any_log, topic, 1, others)
    found = await lag_of(any_log, topic, f"group-{topic}")
    assert (found[0].lag, found[1].lag, found[1].committed) == (5 - read, others, None)


async def test_partitions_of_other_runs_are_no_lag_of_the_group_of_one(any_log: EventLog, topic: str) -> None:
    await fill(any_log, topic, 0, 5)
    await read_and_commit(any_log, topic, f"rating-processor/run-{topic}", 3)
    await fill(any_log, topic, 1, 4)
    found = await lag_of(any_log, topic, f"rating-processor/run-{topic}")
    assert {number: lag.lag for number, lag in found.items()} == {0: 2}


async def test_far_behind_it_is_at_least_the_records(any_log: EventLog, topic: str) -> None:
    await fill(any_log, topic, 0, 1)
    await read_and_commit(any_log, topic, f"group-{topic}", 1)
    await any_log.append([Record(topic, "k", b"x", partition=0) for _ in range(200)])
    found = await lag_of(any_log, topic, f"group-{topic}")
    assert 200 <= found[0].lag <= 202
    assert found[0].end - (found[0].committed or 0) == found[0].lag


async def test_groups_of_finished_runs_are_left_out(any_log: EventLog, topic: str) -> None:
    await fill(any_log, topic, 0, 1)
    run = f"run-{topic}"
    of_run = {f"reward-processor/{run}", f"plugin/mine/{run}"}
    for group in (*of_run, f"all-{topic}", f"plugin/{topic}"):
        await read_and_commit(any_log, topic, group, 1)
    assert {*of_run, f"all-{topic}"} <= set(await live_groups(any_log, ()))
    live = {*await live_groups(any_log, {run, topic})}
    assert {f"all-{topic}", f"plugin/{topic}"} <= live
    assert not of_run & live
