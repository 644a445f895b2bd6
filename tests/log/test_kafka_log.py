"""What only the Kafka adapter has to prove, on a shared broker."""

import asyncio
import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition as KafkaPartition

from tests.log.conftest import foreign_transaction
from tests.log.harness import DEADLINE_S, read, records
from unstable_stream.errors import (
    EventLogError,
    LogUnavailableError,
    OffsetOutOfRangeError,
    PartitionsChangedError,
    RecordTooLargeError,
    UnknownTopicError,
)
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.kafka.producer import STATES
from unstable_stream.log.kafka.sending import Sender
from unstable_stream.log.port import Record, TopicPartition, TopicSpec, partition_for_key
from unstable_stream.log.topic_drift import find_drift
from unstable_stream.log.topics import load_topics

MEGABYTE = 1024 * 1024


@pytest.fixture
async def log(kafka_bootstrap: str) -> AsyncIterator[KafkaLog]:
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}) as opened:
        yield opened


@pytest.fixture
async def admin(kafka_bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """What changes topics behind our back."""
    client = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await client.start()
    yield client
    await client.close()


async def _topic(log: KafkaLog, partitions: int = 1, max_message_bytes: int = MEGABYTE) -> str:
    name = f"topic-{secrets.token_hex(6)}"
    await log.create_topics([TopicSpec(name, partitions, max_message_bytes=max_message_bytes)])
    return name


async def test_a_broker_limit_below_the_declared_one_is_reported(
    log: KafkaLog, admin: AIOKafkaAdminClient
) -> None:
    """The topic was made elsewhere, without a limit of its own: the broker's ``message.max.bytes`` holds."""
    name = f"topic-{secrets.token_hex(6)}"
    await admin.create_topics([NewTopic(name, 8, 1)])
    async with asyncio.timeout(DEADLINE_S):
        while name not in await log.topic_settings():
            await asyncio.sleep(0.05)
    declared = replace(load_topics()["trajectories"], name=name)
    settings = await log.topic_settings()
    (drift,) = (d for d in find_drift({name: declared}, settings) if d.setting == "max_message_bytes")
    assert drift.endangers_runs
    limit = settings[name].max_message_bytes
    assert str(drift).endswith(f"max message bytes {limit:,} bytes, declared 67,108,864 bytes")


async def test_the_limit_is_of_the_record_and_holds_when_it_does_not_compress(
    log: KafkaLog, kafka_bootstrap: str
) -> None:
    topic = await _topic(log, max_message_bytes=10_000)
    fits = random.Random(1).randbytes(9_900)
    for value in (fits, b"x" * 9_900):
        await log.append([Record(topic, "k", value)])
        await log.append([Record(topic, "k", value), Record(topic, "k", value)])  # more than a batch may have
    for value in (random.Random(1).randbytes(10_000), b"x" * 10_000):
        with pytest.raises(RecordTooLargeError, match=rf"'k' for topic '{topic}' has 10\d\d\d bytes.*10000"):
            await log.append([Record(topic, "k", value)])
    assert len(await read(await log.consumer([topic]), 6)) == 6
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}) as other:
        await other.alter_topics([TopicSpec(topic, 1, max_message_bytes=20_000)])
    await log.append([Record(topic, "k", b"x" * 10_000)])  # though another process raised it


async def test_batches_appended_at_once_share_transactions(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await _topic(log, 2)
    await log.append([Record(topic, "k", b"first", partition=p) for p in (0, 1)])
    commit = mock.create_autospec(Sender.commit_transaction, side_effect=Sender.commit_transaction)
    monkeypatch.setattr(Sender, "commit_transaction", commit)
    batches = [[Record(topic, "k", b"%d" % n, partition=p) for p in (0, 1)] for n in range(50)]
    bad = [Record(topic, "k", b""), Record("no-such-topic", "k", b"")]
    single = [[Record(topic, "k", b"single-%d" % n)] for n in range(20)]
    results = await asyncio.gather(
        *(log.append(batch) for batch in (*batches, bad, *single)), return_exceptions=True
    )
    assert isinstance(results[50], UnknownTopicError)  # alone
    assert 1 <= commit.await_count <= 3
    stored = await read(await log.consumer([topic]), 2 + 100 + 20)
    where = {(TopicPartition(r.topic, r.partition), r.offset): r.value for r in stored}
    for batch, places in zip((*batches, *single), results[:50] + results[51:], strict=True):
        assert isinstance(places, list)
        assert [where[place] for place in places] == [record.value for record in batch]


async def test_many_batches_larger_than_one_request_arrive_in_order(log: KafkaLog) -> None:
    topic = await _topic(log, 2)
    value = random.Random(2).randbytes(300_000)
    batch = [Record(topic, "k", b"%03d" % n + value, partition=n % 2) for n in range(20)]
    places = await log.append(batch)
    assert [at.partition for at, _ in places] == [n % 2 for n in range(20)]
    found = await read(await log.consumer([topic]), 20)
    for number in (0, 1):
        order = [int(r.value[:3]) for r in found if r.partition == number]
        assert order == list(range(number, 20, 2))


async def test_a_forgotten_state_is_a_tombstone(log: KafkaLog, kafka_bootstrap: str) -> None:
    scope = f"scope-{secrets.token_hex(6)}"
    producer = await log.producer(scope)
    for states in ({"a": b"1", "b": b"1"}, {"a": b""}):
        async with producer.transaction() as transaction:
            await transaction.save(scope, states)
    assert await log.saved(scope) == {"b": b"1"}
    found: list[bytes | None] = []
    brokers = {"bootstrap_servers": kafka_bootstrap, "auto_offset_reset": "earliest"}
    async with asyncio.timeout(DEADLINE_S), AIOKafkaConsumer(STATES.name, **brokers) as reader:
        while len(found) < 2:
            record = await reader.getone()
            if record.key == f"{scope}\ta".encode():
                found.append(record.value)
    assert found == [b"1", None]


async def test_saved_states_are_the_newest_ones_behind_an_open_transaction(
    log: KafkaLog, kafka_bootstrap: str
) -> None:
    scope = f"scope-{secrets.token_hex(6)}"
    producer = await log.producer(scope)
    async with producer.transaction() as transaction:
        await transaction.save(scope, {"a": b"old"})
    partition = partition_for_key(scope, STATES.partitions)
    async with foreign_transaction(kafka_bootstrap, STATES.name, partition):
        async with producer.transaction() as transaction:
            await transaction.save(scope, {"a": b"new"})
        loading = asyncio.create_task(log.saved(scope))
        done, _ = await asyncio.wait({loading}, timeout=0.5)
        assert not done
    async with asyncio.timeout(DEADLINE_S):
        assert await loading == {"a": b"new"}


async def test_altering_a_topic_leaves_its_other_settings(log: KafkaLog, admin: AIOKafkaAdminClient) -> None:
    topic = await _topic(log)
    others = {"segment.ms": "123456", "retention.ms": "5000"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, others)])
    await log.alter_topics([TopicSpec(topic, 1, cleanup_policy="compact", max_message_bytes=5_000)])
    wanted = ConfigResource(ConfigResourceType.TOPIC, topic)
    ((answer,),) = [response.resources for response in await admin.describe_configs([wanted])]
    settings = {name: value for name, value, *_ in answer[4]}
    assert (settings["segment.ms"], settings["retention.ms"]) == ("123456", "-1")
    assert (settings["cleanup.policy"], settings["max.message.bytes"]) == ("compact", "5000")


async def test_settings_that_lose_records_are_known(log: KafkaLog, admin: AIOKafkaAdminClient) -> None:
    topic = await _topic(log)
    assert (await log.topic_settings())[topic].loses_by == ()
    found = {"unclean.leader.election.enable": "true", "retention.bytes": "1000", "min.insync.replicas": "1"}
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, found)])
    losing = ("unclean.leader.election.enable=true", "retention.bytes=1000")  # one broker: one copy is all
    async with asyncio.timeout(DEADLINE_S):
        while (await log.topic_settings())[topic].loses_by != losing:
            await asyncio.sleep(0.05)


async def test_no_record_so_late_is_before_the_offset_of_a_time(log: KafkaLog) -> None:
    topic = await _topic(log, 2)
    at = TopicPartition(topic, 0)
    offsets = []
    for moment in (100, 300, 200, 400):  # a marker of today lies behind each
        batch = [Record(topic, "k", b"", timestamp_ms=moment, partition=p) for p in (0, 1)]
        offsets.append((await log.append(batch))[0][1])
    for moment, index in {50: 0, 100: 0, 101: 1, 300: 1, 301: 3, 400: 3}.items():
        found = (await log.offsets_for_time(topic, moment))[at]
        assert found <= offsets[index]
        assert index == 0 or found > offsets[0]
    assert (await log.offsets_for_time(topic, 2**45))[at] == (await log.end_offsets(topic))[at]
    assert await log.offsets_for_time(topic, -5) == await log.beginning_offsets(topic)


async def test_what_retention_deleted_is_said_and_skipped_by_seeking(
    log: KafkaLog, admin: AIOKafkaAdminClient
) -> None:
    topic, group = await _topic(log), f"group-{secrets.token_hex(6)}"
    at = TopicPartition(topic, 0)
    places = await log.append(records(topic, ["a", "b", "c", "d"]))
    member = await log.consumer([topic], group=group)
    await read(member, 4)
    await member.commit({at: places[1][1]})
    await member.close()
    await admin.delete_records({KafkaPartition(*at): RecordsToDelete(before_offset=places[3][1])})
    member = await log.consumer([topic], group=group)
    found, end = places[1][1], (await log.end_offsets(topic))[at]
    message = rf"{topic}\[0\]@{found} .* offsets {places[3][1]} up to \(not including\) {end}.*retention"
    for _ in range(2):  # it does not go on by itself
        with pytest.raises(OffsetOutOfRangeError, match=message):
            await read(member, 1)
    await member.seek(await log.beginning_offsets(topic))
    assert [record.value for record in await read(member, 1)] == [b"d"]


async def test_partitions_that_are_added_stop_a_reader_with_both_counts(
    log: KafkaLog, admin: AIOKafkaAdminClient
) -> None:
    topic = await _topic(log, 2)
    await log.append([Record(topic, "k", b"1")])
    consumers = [await log.consumer([topic], group) for group in (None, f"group-{topic}")]
    for consumer in consumers:
        assert len(await read(consumer, 1)) == 1
    await admin.create_partitions({topic: NewPartitions(total_count=5)})
    for consumer in consumers:
        with pytest.raises(PartitionsChangedError, match=f"{topic}' had 2 partitions .* has 5 now"):
            await read(consumer, 1)
    ((at, _),) = await log.append([Record(topic, "k", b"2")])
    assert at.partition == partition_for_key("k", 2) != partition_for_key("k", 5), "where its key always was"
    with pytest.raises(PartitionsChangedError):
        await log.consumer([topic])


async def test_a_transaction_commits_known_partitions_of_one_group(log: KafkaLog) -> None:
    topic = await _topic(log)
    at = TopicPartition(topic, 0)
    group = f"group-{secrets.token_hex(6)}"
    producer = await log.producer(group)
    async with producer.transaction() as tx:
        await tx.commit_positions(group, {at: 0})
        with pytest.raises(EventLogError, match=f"of one group, here '{group}'"):
            await tx.commit_positions("another", {at: 0})
        with pytest.raises(UnknownTopicError, match=rf"{topic}\[7\]"):
            await tx.commit_positions(group, {TopicPartition(topic, 7): 1})
    assert await log.committed_positions(group) == {at: 0}


async def test_a_transaction_cancelled_in_its_commit_is_settled(log: KafkaLog) -> None:
    topic = await _topic(log)
    producer = await log.producer(f"producer-{secrets.token_hex(6)}")
    reader = await log.consumer([topic])
    for turn in range(8):

        async def transact(turn: int = turn) -> None:
            async with producer.transaction() as tx:
                await tx.append(records(topic, [str(turn)]))

        task = asyncio.create_task(transact())
        for _ in range(turn * 3):
            await asyncio.sleep(0)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        assert ended is None or isinstance(ended, asyncio.CancelledError)
        async with producer.transaction() as tx:  # the producer goes on
            await tx.append(records(topic, [f"after {turn}"]))
    values: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while b"after 7" not in values:
            values += [record.value for record in await reader.poll()]
    assert [value for value in values if value.startswith(b"after")] == [b"after %d" % n for n in range(8)]
    assert len(set(values)) == len(values)


async def test_a_broker_that_does_not_know_a_new_topic_yet_is_waited_for(
    log: KafkaLog, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await _topic(log)
    asked: list[str] = []

    # Of several brokers one learns of a topic after another, at a moment that no test can choose.
    def first_from_one_that_is_behind(name: str, behind: Any) -> None:
        ask = getattr(AIOKafkaAdminClient, name)

        async def answer(*arguments: Any) -> Any:
            asked.append(name)
            return await behind(ask, *arguments) if asked.count(name) == 1 else await ask(*arguments)

        monkeypatch.setattr(AIOKafkaAdminClient, name, answer)

    async def no_topics(ask: Any, admin: Any) -> list[object]:
        return []

    async def settings_of_another(ask: Any, admin: Any, resources: object) -> Any:
        return await ask(admin, [ConfigResource(ConfigResourceType.TOPIC, "unknown")])

    first_from_one_that_is_behind("describe_topics", no_topics)
    first_from_one_that_is_behind("describe_configs", settings_of_another)
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}) as other:
        await other.append(records(topic, ["a"]))
        assert [record.value for record in await read(await other.consumer([topic]), 1)] == [b"a"]
        topics_and_configs = ["describe_topics", "describe_configs"]
        assert asked[:5] == ["describe_topics", *topics_and_configs * 2]
        with pytest.raises(UnknownTopicError, match=r"no-such-topic"):
            await other.consumer(["no-such-topic"])


async def test_a_log_belongs_to_one_event_loop(kafka_bootstrap: str) -> None:
    log = KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={})
    await log.log_id()
    with pytest.raises(EventLogError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(log.log_id()))
    await log.close()
    await log.close()
    with pytest.raises(EventLogError, match="closed"):
        await log.topics()


async def test_a_server_that_never_answers_is_given_up() -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    log = KafkaLog.open(f"kafka://127.0.0.1:{port}", environ={}, connect_timeout_s=0.5)
    for ask in (log.topics, lambda: log.producer("p"), lambda: log.append(records("t", ["a"]))):
        with pytest.raises(LogUnavailableError, match=rf"127\.0\.0\.1:{port}: could not .*: no answer"):
            await asyncio.wait_for(ask(), DEADLINE_S)
    await log.close()
    server.close()
    await server.wait_closed()
