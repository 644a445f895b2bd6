"""Brokers that are not there, die and come back: nothing acknowledged is lost, nothing is there twice."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from logging import WARNING
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.conftest import free_port_pair, skip_without_kafka
from tests.log.harness import DEADLINE_S, read, records
from unstable_stream.errors import FencedError, LogUnavailableError
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import Record, TopicPartition, TopicSpec

pytestmark = pytest.mark.broker

RESTART_S = 90.0
"""For what waits for a broker to start on a busy machine."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """A broker of this module's own, which its tests kill."""
    skip_without_kafka()
    with KafkaCluster(tmp_path_factory.mktemp("outage"), port=free_port_pair()) as started:
        yield started


def _open(cluster: KafkaCluster, **settings: float) -> KafkaLog:
    return KafkaLog.open(f"kafka://{cluster.bootstrap}", environ={}, **settings)


async def _kill(cluster: KafkaCluster) -> None:
    await asyncio.to_thread(cluster.stop, 1, signal.SIGKILL)


async def _start(cluster: KafkaCluster) -> None:
    await asyncio.to_thread(cluster.start, 1)


def test_a_broker_that_is_down_at_the_start_is_named_in_one_line() -> None:
    port = free_port_pair()
    program = (
        "import asyncio, time\n"
        "from unstable_stream.errors import LogUnavailableError\n"
        "from unstable_stream.log.kafka.log import KafkaLog\n"
        "async def ask():\n"
        f"    log = KafkaLog.open('kafka://127.0.0.1:{port},localhost:{port}', connect_timeout_s=1)\n"
        "    began = time.monotonic()\n"
        "    try:\n"
        "        await log.topics()\n"
        "    except LogUnavailableError as error:\n"
        "        print(0.5 < time.monotonic() - began, error)\n"
        "    await log.close()\n"
        "asyncio.run(ask())\n"
    )
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert re.fullmatch(
        rf"True kafka://127\.0\.0\.1:{port},localhost:{port}: could not connect: .*Connect call failed.*\. "
        r"Check that the brokers run, .*security_protocol=….*\n",
        done.stdout,
    )
    # On a busy machine asyncio's debug mode names what took long.
    assert [line for line in done.stderr.splitlines() if not line.startswith("Executing ")] == []


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Traffic:
    """Writers of all kinds and a reader, with what was acknowledged, what is in doubt and what was seen."""

    def __init__(self, log: KafkaLog, topics: tuple[str, str]) -> None:
        self.log = log
        self.topics = topics
        self.acknowledged: list[bytes] = []
        self.in_doubt: list[bytes] = []
        self.seen: dict[tuple[str, int, int], bytes] = {}
        self.stop = asyncio.Event()

    def _records(self, name: str, count: int) -> list[Record]:
        # Kafka knows what was sent twice by its producer, and forgets producers by their records' times.
        now_ms = 0 if name.startswith("old") else _now_ms()
        return [
            Record(topic, name, f"{name} {topic}".encode(), timestamp_ms=now_ms)
            for topic in self.topics[:count]
        ]

    async def append(self, name: str, count: int) -> None:
        """Append batches of ``count`` records: one goes without a transaction, two need one."""
        number = 0
        while not self.stop.is_set():
            batch = self._records(f"{name}-{number}", count)
            number += 1
            try:
                await self.log.append(batch)
            except LogUnavailableError:
                self.in_doubt += [record.value for record in batch]
            else:
                self.acknowledged += [record.value for record in batch]

    async def transact(self, name: str) -> None:
        """Commit transactions; a producer whose last one is in doubt is replaced."""
        producer = await self.log.producer(name)
        number = 0
        while not self.stop.is_set():
            batch = self._records(f"{name}-{number}", 2)
            number += 1
            try:
                async with producer.transaction() as tx:
                    await tx.append(batch)
                    await tx.commit_positions(name, {TopicPartition(self.topics[0], 0): number})
            except (LogUnavailableError, FencedError):
                self.in_doubt += [record.value for record in batch]
                producer = await self.log.producer(name)
            else:
                self.acknowledged += [record.value for record in batch]

    async def read(self) -> None:
        """Read as a member of a group, to the end."""
        consumer = await self.log.consumer(self.topics, group="readers")
        while True:
            found = await consumer.poll(timeout_s=0.3)
            self.seen |= {(r.topic, r.partition, r.offset): r.value for r in found}
            if found:
                await consumer.commit(consumer.positions())
            elif self.stop.is_set():
                ends = dict(await self.log.end_offsets(self.topics[0]))
                ends |= await self.log.end_offsets(self.topics[1])
                if consumer.positions() == ends:
                    return

    async def progress(self, count: int) -> None:
        """Wait until so many more were acknowledged, and as many seen."""
        acknowledged, seen = len(self.acknowledged), len(self.seen)
        async with asyncio.timeout(RESTART_S):
            while len(self.acknowledged) < acknowledged + count or len(self.seen) < seen + count:
                await asyncio.sleep(0.02)

    def check(self) -> None:
        """Compare what was seen with what was acknowledged."""
        stored = Counter(self.seen.values())
        assert not set(self.acknowledged) - stored.keys()
        assert [value for value, times in stored.items() if times > 1] == []
        assert stored.keys() <= {*self.acknowledged, *self.in_doubt}
        assert len(self.acknowledged) == len(set(self.acknowledged)) >= 100


@pytest.mark.timeout(240)
async def test_a_killed_broker_comes_back_and_nothing_is_lost_or_twice(cluster: KafkaCluster) -> None:
    async with _open(cluster) as log:
        await log.create_topics([TopicSpec("one", 2), TopicSpec("two", 2)])
        traffic = _Traffic(log, ("one", "two"))
        async with asyncio.TaskGroup() as tasks:
            for name, count in (("single", 1), ("old", 1), ("pair", 2), ("another", 2)):
                tasks.create_task(traffic.append(name, count))
            tasks.create_task(traffic.transact("transaction"))
            tasks.create_task(traffic.read())
            await traffic.progress(50)
            await _kill(cluster)
            await _start(cluster)
            await traffic.progress(50)
            traffic.stop.set()
    traffic.check()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_one_of_three_brokers_dies_and_the_others_go_on(tmp_path: Path) -> None:
    with KafkaCluster(tmp_path, brokers=3, port=free_port_pair(3)) as cluster:
        async with _open(cluster) as log:
            await log.create_topics([TopicSpec("one", 3), TopicSpec("two", 3)])
            traffic = _Traffic(log, ("one", "two"))
            async with asyncio.TaskGroup() as tasks:
                for name, count in (("single", 1), ("old", 1), ("pair", 2)):
                    tasks.create_task(traffic.append(name, count))
                tasks.create_task(traffic.transact("transaction"))
                tasks.create_task(traffic.read())
                await traffic.progress(100)
                await asyncio.to_thread(cluster.stop, 2, signal.SIGKILL)
                await traffic.progress(1000)
                traffic.stop.set()
    traffic.check()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_what_cannot_be_delivered_is_said_in_time_and_the_log_goes_on(
    cluster: KafkaCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        _open(cluster, delivery_timeout_s=RESTART_S) as patient,
        _open(cluster, delivery_timeout_s=6) as log,
    ):
        await log.create_topics([TopicSpec("three", 2)])
        both = [Record("three", "k", b"", timestamp_ms=_now_ms(), partition=number) for number in (0, 1)]
        await patient.append(both)  # a new broker's first transaction takes its time
        await log.append(both)
        await log.append(both[:1])
        producer = await log.producer("hasty")
        async with producer.transaction() as tx:
            await tx.append(both)
        member = await patient.consumer(["three"], group="members")
        reader = await patient.consumer(["three"], start="end")
        async with asyncio.timeout(DEADLINE_S):
            while not await member.poll():
                pass
        await _kill(cluster)
        address = cluster.bootstrap
        for batch in (both, both[:1]):
            with pytest.raises(LogUnavailableError, match=f"{address}: could not append.*stored or not"):
                await asyncio.wait_for(log.append(batch), DEADLINE_S)
        with pytest.raises(LogUnavailableError, match=rf"kafka://{address}: .* 'hasty'.*open another"):
            async with producer.transaction() as tx:
                await tx.append(both)
        with pytest.raises(LogUnavailableError, match="open another"):  # at once: it does not begin again
            async with producer.transaction() as tx:
                pass
        with pytest.raises(LogUnavailableError, match=address):
            await asyncio.wait_for(log.end_offsets("three"), DEADLINE_S)
        assert await reader.poll(timeout_s=1.0) == [], "nothing there is no error: the broker may come back"
        async with asyncio.timeout(DEADLINE_S):
            while await member.poll(timeout_s=0.2):  # what was fetched; then nothing, as it goes on trying
                pass
        hopeless = _open(cluster, delivery_timeout_s=1, connect_timeout_s=0.2)
        with pytest.raises(LogUnavailableError):
            await hopeless.log_id()
        await asyncio.wait_for(hopeless.close(), DEADLINE_S)
        closing = _open(cluster)
        await _start(cluster)
        assert await closing.topics()
        await closing.close()
        await patient.append(records("three", ["after"]))
        async with asyncio.timeout(RESTART_S):
            while not any(record.value == b"after" for record in await member.poll()):
                pass
        await member.commit(member.positions())
        assert b"after" in [record.value for record in await read(reader, 1)]
        await log.append(records("three", ["and after"]))
        async with (await log.producer("hasty")).transaction() as tx:
            await tx.append(both)
        await _kill(cluster)
        for opened in (patient, log):
            await asyncio.wait_for(opened.close(), DEADLINE_S)
    # Pytest listens to aiokafka itself, which nobody else does.
    said = [(record.name, record.levelno) for record in caplog.records if record.name != "aiokafka"]
    said = [(name, level) for name, level in said if not name.startswith("aiokafka.")]
    assert set(said) <= {("unstable_stream.kafka", WARNING)}
    assert len(said) <= 2
