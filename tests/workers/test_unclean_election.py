"""Real brokers lose acknowledged records in an unclean leader election: all that trusted them says so."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.conn import create_conn
from aiokafka.errors import NotLeaderForPartitionError
from aiokafka.protocol.fetch import FetchRequest
from structlog.testing import capture_logs

from infra.kafka.brokers import KafkaCluster
from tests.conftest import KEEPING, free_port_pair, skip_without_kafka
from tests.log.harness import topics_of_one_partition
from tests.reward_transformations.trajectories import RUN
from tests.streams.doomed_host import RATINGS, make_ratings
from tests.streams.hosted_games import events, from_scratch, games, read
from unstable_stream.archive import query
from unstable_stream.errors import LogUnavailableError
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import Consumer, EventLog, Record, Start, TopicPartition
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.streams.fold_sink import FoldSink
from unstable_stream.streams.processors import host_processors
from unstable_stream.streams.run_configs import RunDirectory
from unstable_stream.workers.archiver import run_archiver

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(900)]

_AT = TopicPartition("game-outcomes", 0)
_DEADLINE_S = 180.0
_LOSING = {**KEEPING, "default.replication.factor": "2", "min.insync.replicas": "1"}


@asynccontextmanager
async def _admin(cluster: KafkaCluster) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def _leader_and_follower(cluster: KafkaCluster) -> tuple[int, int]:
    async with _admin(cluster) as admin:
        (topic,) = await admin.describe_topics([_AT.topic])
        (partition,) = topic["partitions"]
        (follower,) = set(partition["replicas"]) - {partition["leader"]}
        return partition["leader"], follower


async def _address(cluster: KafkaCluster, broker: int) -> tuple[str, int]:
    async with _admin(cluster) as admin:
        found = {one["node_id"]: one for one in (await admin.describe_cluster())["brokers"]}
    return found[broker]["host"], found[broker]["port"]


async def _let_leaders_be_unclean(cluster: KafkaCluster) -> None:
    wanted = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    async with _admin(cluster) as admin:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, _AT.topic, wanted)])


async def _rate(log: EventLog, until: asyncio.Event | None = None) -> None:
    """Rate all games that there are; with ``until``, those that come, too."""
    stop = until or asyncio.Event()
    if until is None:
        stop.set()
    async with RunDirectory(log) as runs:
        await host_processors([FoldSink(log, RATINGS, runs, RUN)], stop=stop)


async def _archive(log: EventLog, path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    await run_archiver(log, path, stop=stop, flush_interval_s=0.02)


@dataclass(frozen=True)
class _Loss:
    kept: int
    """The end of the partition after the election."""
    last: int
    """The offset of the last lost record."""
    end: int
    """The end before."""
    leader: int
    """The broker that had the lost records, and is down."""


async def _lose(cluster: KafkaCluster, log: EventLog, meanwhile: Callable[[], Awaitable[None]]) -> _Loss:
    """Have ten games of thirty acknowledged by the leader alone, and another broker become the leader.

    ``meanwhile`` runs while they are there.
    """
    await log.create_topics(topics_of_one_partition())
    await _let_leaders_be_unclean(cluster)
    config = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}
    await start_run(log, parse_config(config), RUN)
    outcomes = _outcomes(0, 30)
    await log.append(outcomes[:20])
    kept = (await log.end_offsets(_AT.topic))[_AT]
    leader, follower = await _leader_and_follower(cluster)
    cluster.stop(follower)
    await log.append(outcomes[20:])
    await meanwhile()
    last, end = (await read(log, _AT.topic))[-1].offset, (await log.end_offsets(_AT.topic))[_AT]
    assert last > kept
    await asyncio.to_thread(cluster.stop, leader, signal.SIGKILL)
    await asyncio.to_thread(cluster.start, follower)
    async with asyncio.timeout(_DEADLINE_S):
        while (await log.end_offsets(_AT.topic))[_AT] != kept:
            await asyncio.sleep(0.2)
    return _Loss(kept, last, end, leader)


def _outcomes(first: int, count: int) -> list[Record]:
    return [record for record in games(first, count) if record.topic == _AT.topic]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Three brokers, each record on two of them."""
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", 3, free_port_pair(3), _LOSING) as cluster:
        yield cluster


async def test_who_leads_no_more_gives_no_records(cluster: KafkaCluster) -> None:
    """A consumer that has not heard of an election must not read on from the old leader."""
    async with KafkaLog.open(f"kafka://{cluster.bootstrap}", environ={}) as log:
        await log.create_topics(topics_of_one_partition())
        await log.append(_outcomes(0, 20))
        answers = {}
        for broker in await _leader_and_follower(cluster):
            host, port = await _address(cluster, broker)
            connection = await create_conn(host, port)
            try:
                fetch = FetchRequest(200, 1, 1 << 20, 0, [(_AT.topic, [(_AT.partition, 0, 1 << 20)])])
                ((_, ((_, answers[broker], *_),)),) = (await connection.send(fetch)).topics
            finally:
                await connection.close()
    assert [*answers.values()] == [0, NotLeaderForPartitionError.errno]


async def test_lost_acknowledged_records_are_named_and_the_archive_follows(
    tmp_path: Path, cluster: KafkaCluster
) -> None:
    archive, rebuilt = tmp_path / "a.duckdb", tmp_path / "rebuilt.duckdb"
    others = _outcomes(100, 40)
    url = f"kafka://{cluster.bootstrap}"
    async with KafkaLog.open(url, environ={}) as log:

        async def rate_and_archive() -> None:
            await _rate(log)
            await _archive(log, archive)

        loss = await _lose(cluster, log, rate_and_archive)
        # A writer that has lost records is told when it writes on.
        with pytest.raises(LogUnavailableError, match="OutOfOrderSequenceNumber"):
            await log.append(others)

    async with KafkaLog.open(url, environ={}) as log:
        await log.append(others)
        cluster.start(loss.leader)
        with capture_logs() as told:
            await _rate(log)
            await _archive(log, archive)
        # The processor began again with what the log has, and named the last record that it had trusted.
        assert [line["lost"] for line in told if "lost" in line] == [f"{_AT}@{loss.last}"]
        assert await _all_is_rated(log)
        # The archive is what a new one becomes.
        taken_out = [line for line in told if line.get("partition") == str(_AT) and "offsets" in line]
        assert [line["offsets"] for line in taken_out] == [f"{loss.kept} to {loss.end - 1}"]
        await _archive(log, rebuilt)
        held = [
            query(path, "SELECT game_id FROM game_outcomes ORDER BY 1").rows for path in (archive, rebuilt)
        ]
        assert held[0] == held[1]
        assert len(held[0]) == 60


@pytest.mark.parametrize("others", [3, 40])
async def test_a_processor_at_work_notices_that_records_before_its_position_are_gone(
    cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """The log is shorter than its position when it looks again, or, with 40 others, already longer."""
    url = f"kafka://{cluster.bootstrap}"
    stop = asyncio.Event()
    async with KafkaLog.open(url, environ={}) as log, KafkaLog.open(url, environ={}) as of_host:
        hosts: list[asyncio.Task[None]] = []
        readers = _readers_of(of_host, monkeypatch)

        async def until_all_is_rated() -> None:
            hosts.extend(() if hosts else (asyncio.create_task(_rate(of_host, stop)),))
            async with asyncio.timeout(_DEADLINE_S):
                while not await _all_is_rated(log):
                    assert not hosts[0].done(), hosts[0].exception()
                    await asyncio.sleep(0.5)

        async def until_all_is_rated_and_nothing_is_fetched() -> None:
            await until_all_is_rated()
            if others > 10:
                for reader in readers:
                    reader.pause(*reader.assignment())

        with capture_logs() as told:
            loss = await _lose(cluster, log, until_all_is_rated_and_nothing_is_fetched)
            async with KafkaLog.open(url, environ={}) as writer:
                await writer.append(_outcomes(100, others))
            assert ((await log.end_offsets(_AT.topic))[_AT] > loss.end) == (others > 10)
            await asyncio.to_thread(cluster.start, loss.leader)  # other topics need it
            for reader in readers:
                reader.resume(*reader.assignment())
            await until_all_is_rated()
            stop.set()
            await hosts[0]
        assert [line["lost"] for line in told if "lost" in line] == [f"{_AT}@{loss.last}"]


def _readers_of(log: KafkaLog, monkeypatch: pytest.MonkeyPatch) -> list[AIOKafkaConsumer]:
    """Return the list to which aiokafka's consumers of the games are added that a log opens from here on."""
    readers: list[AIOKafkaConsumer] = []
    opened = log.consumer

    async def noted(topics: Sequence[str], group: str | None = None, start: Start = "beginning") -> Consumer:
        consumer = await opened(topics, group, start)
        if group is not None and _AT.topic in topics:
            readers.append(consumer._consumer)
        return consumer

    monkeypatch.setattr(log, "consumer", noted)
    return readers


async def _all_is_rated(log: EventLog) -> bool:
    """Return whether everything that follows from the present games is published."""
    published = {event.event_id for event in await events(log, "ratings", RUN)}
    return (await from_scratch(log, make_ratings)).keys() <= published
