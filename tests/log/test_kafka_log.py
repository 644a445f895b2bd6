"""What only the Kafka adapter has to prove, on a shared broker."""

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import ProducerFenced
from aiokafka.partitioner import DefaultPartitioner
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
from unstable_stream.log.kafka.sending import Sender
from unstable_stream.log.kafka.states import STATES
from unstable_stream.log.partitioner import partition_for_key
from unstable_stream.log.port import Consumer, Record, TopicPartition, TopicSpec
from unstable_stream.log.topic_drift import find_drift
from unstable_stream.log.topics import load_topics

MEGABYTE = 1024 * 1024


@pytest.fixture
async def log(kafka_bootstrap: str) -> AsyncIterator[KafkaLog]:
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}) as opened:
        yield opened


async def _topic(log: KafkaLog, partitions: int = 1, max_message_bytes: int = MEGABYTE) -> str:
    name = f"topic-{secrets.token_hex(6)}"
    await log.create_topics([TopicSpec(name, partitions, max_message_bytes=max_message_bytes)])
    return name


def test_keys_go_where_other_clients_put_them() -> None:
    partitioner = DefaultPartitioner()
    keys = [f"run-{n}/Tic-Tac-Toe ☺" for n in range(200)] + ["", "k"]
    for partitions in (1, 3, 4, 17):
        numbers = list(range(partitions))
        theirs = [partitioner(key.encode(), numbers, numbers) for key in keys]
        assert theirs == [partition_for_key(key, partitions) for key in keys]


async def test_other_clients_read_the_same_bytes(log: KafkaLog, kafka_bootstrap: str) -> None:
    topic = await _topic(log, 2)
    await log.append([Record(topic, "a ☺", b"1", {"h": b"x"}, 5), Record(topic, "b", b"2", timestamp_ms=6)])
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka_bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as other:
        found = [await asyncio.wait_for(other.getone(), DEADLINE_S) for _ in range(2)]
    assert sorted((r.key, r.value, r.headers, r.timestamp, r.partition) for r in found) == sorted(
        [
            ("a ☺".encode(), b"1", (("h", b"x"),), 5, partition_for_key("a ☺", 2)),
            (b"b", b"2", (), 6, partition_for_key("b", 2)),
        ]
    )


async def test_records_of_other_clients_may_lack_key_and_value(log: KafkaLog, kafka_bootstrap: str) -> None:
    topic = await _topic(log)
    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap) as other:
        await other.send_and_wait(topic, b"no key")
        await other.send_and_wait(topic, None, key=b"\xff", headers=[("h", None)])
    found = await read(await log.consumer([topic]), 2)
    assert [(record.key, record.value) for record in found] == [("", b"no key"), ("�", b"")]


async def test_a_broker_limit_below_the_declared_one_is_reported(log: KafkaLog, kafka_bootstrap: str) -> None:
    """The topic was made elsewhere, without a limit of its own: the broker's ``message.max.bytes`` holds."""
    name = f"topic-{secrets.token_hex(6)}"
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 8, 1)])
    finally:
        await admin.close()
    async with asyncio.timeout(DEADLINE_S):
        while name not in await log.topic_settings():
            await asyncio.sleep(0.05)
    declared = replace(load_topics()["trajectories"], name=name)
    settings = await log.topic_settings()
    (drift,) = (d for d in find_drift({name: declared}, settings) if d.setting == "max_message_bytes")
    assert drift.endangers_runs
    limit = settings[name].max_message_bytes
    assert str(drift).endswith(f"max message bytes {limit:,} bytes, declared 67,108,864 bytes")


async def test_the_limit_is_of_the_record_and_holds_when_it_does_not_compress(log: KafkaLog) -> None:
    topic = await _topic(log, max_message_bytes=10_000)
    fits = random.Random(1).randbytes(9_900)
    for value in (fits, b"x" * 9_900):
        await log.append([Record(topic, "k", value)])
        await log.append([Record(topic, "k", value), Record(topic, "k", value)])  # more than a batch may have
    for value in (random.Random(1).randbytes(10_000), b"x" * 10_000):
        with pytest.raises(RecordTooLargeError, match=rf"'k' for topic '{topic}' has 10\d\d\d bytes.*10000"):
            await log.append([Record(topic, "k", value)])
    assert len(await read(await log.consumer([topic]), 6)) == 6
    await log.alter_topics([TopicSpec(topic, 1, max_message_bytes=20_000)])
    await log.append([Record(topic, "k", b"x" * 10_000)])


async def test_a_limit_that_another_process_raised_is_noticed(log: KafkaLog, kafka_bootstrap: str) -> None:
    topic = await _topic(log, max_message_bytes=2_000)
    with pytest.raises(RecordTooLargeError):
        await log.append([Record(topic, "k", b"x" * 3_000)])
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}) as other:
        await other.alter_topics([TopicSpec(topic, 1, max_message_bytes=5_000)])
    await log.append([Record(topic, "k", b"x" * 3_000)])


async def test_batches_appended_at_once_share_transactions(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await _topic(log, 2)
    await log.append([Record(topic, "k", b"first", partition=p) for p in (0, 1)])
    begun = 0
    commit = Sender.commit_transaction

    async def counted(sender: Sender) -> None:
        nonlocal begun
        begun += 1
        await commit(sender)

    monkeypatch.setattr(Sender, "commit_transaction", counted)
    batches = [[Record(topic, "k", b"%d" % n, partition=p) for p in (0, 1)] for n in range(50)]
    bad = [Record(topic, "k", b""), Record("no-such-topic", "k", b"")]
    single = [[Record(topic, "k", b"single-%d" % n)] for n in range(20)]
    results = await asyncio.gather(
        *(log.append(batch) for batch in (*batches, bad, *single)), return_exceptions=True
    )
    assert isinstance(results[50], UnknownTopicError)  # alone
    assert 1 <= begun <= 3
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


async def test_an_open_transaction_holds_readers_back_until_it_times_out(
    log: KafkaLog, kafka_bootstrap: str
) -> None:
    topic = await _topic(log)
    killed = AIOKafkaProducer(
        bootstrap_servers=kafka_bootstrap,
        transactional_id=f"killed-{secrets.token_hex(4)}",
        transaction_timeout_ms=1000,
    )
    await killed.start()
    await killed.begin_transaction()
    await killed.send_and_wait(topic, b"never", key=b"k")
    places = await log.append(records(topic, ["behind"]))
    assert (await log.end_offsets(topic))[places[0][0]] < places[0][1]
    assert [r.value for r in await read(await log.consumer([topic]), 1)] == [b"behind"]
    with contextlib.suppress(ProducerFenced):  # the brokers gave its transaction up
        await killed.stop()


async def test_a_forgotten_state_is_a_tombstone(log: KafkaLog, kafka_bootstrap: str) -> None:
    scope = f"scope-{secrets.token_hex(6)}"
    producer = await log.producer(scope)
    for states in ({"a": b"1", "b": b"1"}, {"a": b""}):
        async with producer.transaction() as transaction:
            await transaction.save(scope, states)
    assert await log.saved(scope) == {"b": b"1"}
    reader = AIOKafkaConsumer(STATES.name, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest")
    await reader.start()
    found: dict[bytes, list[bytes | None]] = {}
    async with asyncio.timeout(DEADLINE_S):
        while len(found.get(f"{scope}\ta".encode(), ())) < 2:
            for some in (await reader.getmany(timeout_ms=200)).values():
                for record in some:
                    found.setdefault(record.key, []).append(record.value)
    await reader.stop()
    assert found[f"{scope}\ta".encode()] == [b"1", None]


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


async def test_altering_a_topic_leaves_its_other_settings(log: KafkaLog, kafka_bootstrap: str) -> None:
    topic = await _topic(log)
    resource = ConfigResource(
        ConfigResourceType.TOPIC, topic, {"segment.ms": "123456", "retention.ms": "5000"}
    )
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    await admin.alter_configs([resource])
    await log.alter_topics([TopicSpec(topic, 1, cleanup_policy="compact", max_message_bytes=5_000)])
    wanted = ConfigResource(ConfigResourceType.TOPIC, topic)
    ((answer,),) = [response.resources for response in await admin.describe_configs([wanted])]
    settings = {name: value for name, value, *_ in answer[4]}
    await admin.close()
    assert settings["segment.ms"] == "123456"
    assert settings["retention.ms"] == "-1"
    assert (settings["cleanup.policy"], settings["max.message.bytes"]) == ("compact", "5000")


async def test_settings_that_lose_records_are_known(log: KafkaLog, kafka_bootstrap: str) -> None:
    topic = await _topic(log)
    assert (await log.topic_settings())[topic].loses_by == ()
    found = {"unclean.leader.election.enable": "true", "retention.bytes": "1000", "min.insync.replicas": "1"}
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, found)])
    await admin.close()
    losing = ("unclean.leader.election.enable=true", "retention.bytes=1000")  # one broker: one copy is all
    async with asyncio.timeout(DEADLINE_S):
        while (await log.topic_settings())[topic].loses_by != losing:
            await asyncio.sleep(0.05)


async def test_times_are_those_of_records_not_of_markers(log: KafkaLog) -> None:
    topic = await _topic(log, 2)
    at = TopicPartition(topic, 0)
    offsets = []
    for moment in (100, 300, 200, 400):  # a marker of today lies behind each
        batch = [Record(topic, "k", b"", timestamp_ms=moment, partition=p) for p in (0, 1)]
        offsets.append((await log.append(batch))[0][1])
    expected = {50: 0, 100: 0, 101: 1, 300: 1, 301: 3, 400: 3}
    assert {t: (await log.offsets_for_time(topic, t))[at] for t in expected} == {
        t: offsets[index] for t, index in expected.items()
    }
    ends = await log.end_offsets(topic)
    assert await log.offsets_for_time(topic, 401) == ends
    assert await log.offsets_for_time(topic, -5) == await log.beginning_offsets(topic)


async def test_what_retention_deleted_is_said_and_skipped_by_seeking(
    log: KafkaLog, kafka_bootstrap: str
) -> None:
    topic, group = await _topic(log), f"group-{secrets.token_hex(6)}"
    at = TopicPartition(topic, 0)
    places = await log.append(records(topic, ["a", "b", "c", "d"]))
    member = await log.consumer([topic], group=group)
    await read(member, 4)
    await member.commit({at: places[1][1]})
    await member.close()
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    await admin.delete_records({KafkaPartition(*at): RecordsToDelete(before_offset=places[3][1])})
    await admin.close()
    member = await log.consumer([topic], group=group)
    found, end = places[1][1], (await log.end_offsets(topic))[at]
    message = rf"{topic}\[0\]@{found} .* offsets {places[3][1]} up to \(not including\) {end}.*retention"
    for _ in range(2):  # it does not go on by itself
        with pytest.raises(OffsetOutOfRangeError, match=message):
            await read(member, 1)
    await member.seek(await log.beginning_offsets(topic))
    assert [record.value for record in await read(member, 1)] == [b"d"]


@pytest.mark.parametrize("group", [None, "group"])
async def test_partitions_that_are_added_stop_a_reader_with_both_counts(
    log: KafkaLog, kafka_bootstrap: str, group: str | None
) -> None:
    topic = await _topic(log, 2)
    await log.append([Record(topic, "k", b"1")])
    consumer = await log.consumer([topic], group and f"{group}-{topic}")
    assert len(await read(consumer, 1)) == 1
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    await admin.start()
    await admin.create_partitions({topic: NewPartitions(total_count=5)})
    await admin.close()
    with pytest.raises(PartitionsChangedError, match=f"{topic}' had 2 partitions .* has 5 now"):
        await _poll_for_ever(consumer)
    ((at, _),) = await log.append([Record(topic, "k", b"2")])
    assert at.partition == partition_for_key("k", 2) != partition_for_key("k", 5), "where its key always was"
    with pytest.raises(PartitionsChangedError):
        await log.consumer([topic])


async def _poll_for_ever(consumer: Consumer) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await consumer.poll()


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


async def test_a_deleted_topic_is_missed(kafka_bootstrap: str) -> None:
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}, delivery_timeout_s=2) as log:
        topic = await _topic(log)
        await log.append(records(topic, ["a"]))
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_bootstrap)
        await admin.start()
        await admin.delete_topics([topic])
        await admin.close()
        with pytest.raises(UnknownTopicError, match=topic):
            await log.append(records(topic, ["b"]))


async def test_a_broker_that_does_not_know_a_new_topic_yet_is_waited_for(
    log: KafkaLog, kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await _topic(log)
    describe_topics, describe_configs = (
        AIOKafkaAdminClient.describe_topics,
        AIOKafkaAdminClient.describe_configs,
    )
    asked: list[str] = []

    # Of several brokers one learns of a topic after another, at a moment that no test can choose.
    async def topics_of_one_that_is_behind(admin: AIOKafkaAdminClient) -> list[object]:
        asked.append("topics")
        return [] if asked.count("topics") == 1 else list(await describe_topics(admin))

    async def settings_of_one_that_is_behind(
        admin: AIOKafkaAdminClient, resources: list[ConfigResource]
    ) -> list[object]:
        asked.append("settings")
        if asked.count("settings") == 1:
            resources = [ConfigResource(ConfigResourceType.TOPIC, "unknown")]
        return list(await describe_configs(admin, resources))

    monkeypatch.setattr(AIOKafkaAdminClient, "describe_topics", topics_of_one_that_is_behind)
    monkeypatch.setattr(AIOKafkaAdminClient, "describe_configs", settings_of_one_that_is_behind)
    async with KafkaLog.open(f"kafka://{kafka_bootstrap}", environ={}) as other:
        await other.append(records(topic, ["a"]))
        assert [record.value for record in await read(await other.consumer([topic]), 1)] == [b"a"]
        assert asked[:5] == ["topics", "topics", "settings", "topics", "settings"]
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
