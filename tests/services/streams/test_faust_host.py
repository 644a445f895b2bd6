"""The processors on a real Kafka, on both runtimes: the same events, shared partitions, kills, ends."""

import asyncio
import secrets
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import confluent_kafka
import confluent_kafka.admin
import pytest
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth
from faust.types import TP

from tests.processes import DEADLINE_S, Service, until
from tests.reward_transformations.trajectories import make_trajectory
from tests.services.streams.hosted_games import (
    AnyProcessor,
    assert_exactly_once,
    drain,
    events,
    games,
    read,
    settings,
)
from tests.tiers import chosen
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import ALLOW_CODE
from unstable_stream.log.kafka.location import parse_location
from unstable_stream.log.kafka.log import KafkaLog
from unstable_stream.log.port import Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_to_end
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.reward_transformations import StepRewardTransform
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.faust import FaustReading, credentials, joined_on, kafka_location
from unstable_stream.services.streams.processor import group_of
from unstable_stream.services.streams.processors import PROCESSORS, rating_processor, reward_processor

FINAL = [{"type": "RoleAdvantageFormatter", "tau": 0.3}]
STEP = [{"type": "RewardForFormat", "reward": 0.5}]
INPUTS = ("trajectories", "game-outcomes")
FAUST = [sys.executable, "-m", "faust", "-A", "unstable_stream.services.streams.faust", "worker"]
RESTLESS = [sys.executable, "-m", "faust", "-A", "tests.services.streams.restless_faust", "worker"]
SERVICE = [sys.executable, "-m", "unstable_stream.services.launch.service", "processors"]
OURS = [sys.executable, "-c", "from unstable_stream.ui.cli import main; main()", "processors"]


@dataclass
class Run:
    """A run of its own on a broker that others use too."""

    log: KafkaLog
    location: str
    run_id: str
    output: Path
    begin: Positions
    """Where its records begin: others' before them are none of its processors' business."""
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    """Where those end that were played."""

    @classmethod
    async def start(cls, log: KafkaLog, location: str, output: Path, config: RunConfig) -> "Run":
        run_id = f"hosted-{secrets.token_hex(4)}"
        await start_run(log, config, run_id)
        begin = {at: end for topic in INPUTS for at, end in (await log.end_offsets(topic)).items()}
        run = cls(log, location, run_id, output, begin)
        await run.rewind()
        return run

    async def rewind(self) -> None:
        """Let its processors begin again."""
        producer = await self.log.producer(f"{self.run_id}-rewind")
        for spec in PROCESSORS:
            own = {at: offset for at, offset in self.begin.items() if at.topic in spec.inputs}
            async with producer.transaction() as transaction:
                await transaction.commit_positions(group_of(spec.name, self.run_id), own)
        await producer.close()

    @property
    def makers(self) -> Sequence[Callable[[], AnyProcessor]]:
        return partial(reward_processor, self.run_id, FINAL, STEP), partial(rating_processor, self.run_id)

    async def play(self, first: int, count: int) -> None:
        places = await self.log.append(games(first, count, self.run_id, f"{self.run_id}-other"))
        self.ends |= {at: offset + 1 for at, offset in sorted(places)}

    async def processed(self) -> bool:
        """Whether all that was played has been committed by each processor that reads it."""
        for spec in PROCESSORS:
            committed = await self.log.committed_positions(group_of(spec.name, self.run_id))
            if any(committed.get(at, 0) < end for at, end in self.ends.items() if at.topic in spec.inputs):
                return False
        return True

    async def played(self) -> list[StoredRecord]:
        """The records its processors have to read."""
        return [record async for record in read_to_end(self.log, INPUTS, starts=self.begin)]

    async def members(self, runtime: str) -> dict[str, set[int]]:
        """The partitions of ``trajectories`` by member of the group that shares them out."""
        group = group_of("reward-processor", self.run_id)
        if runtime == "faust":
            group = f"unstable_stream-faust-{self.run_id}"
        bootstrap = self.location.removeprefix("kafka://")
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
        described = admin.describe_consumer_groups([group])[group]
        found = await asyncio.to_thread(described.result)
        return {
            member.member_id: {
                at.partition for at in member.assignment.topic_partitions if at.topic == "trajectories"
            }
            for member in found.members
        }


@pytest.fixture
async def run(kafka_bootstrap: str, tmp_path: Path) -> AsyncIterator[Run]:
    location = f"kafka://{kafka_bootstrap}"
    async with KafkaLog.open(location) as log:
        await create_declared_topics(log, load_topics())
        yield await Run.start(log, location, tmp_path, _config(STEP))


def _config(step: Sequence[object]) -> RunConfig:
    return parse_config(settings(rewards={"final": FINAL, "step": list(step)}))


def worker(run: Run, arguments: Sequence[str], name: str = "worker", allow_code: str = "") -> Service:
    """A process that hosts the processors of a run."""
    told = {"UNSTABLE_STREAM_LOG": run.location, "UNSTABLE_STREAM_RUN": run.run_id, ALLOW_CODE: allow_code}
    return Service(run.output / f"{name}.log", *arguments, **told)


def host(run: Run, runtime: str, name: str = "worker") -> Service:
    """``unstable-stream processors``."""
    return worker(run, [*OURS, "--run", run.run_id, "--runtime", runtime], name)


async def test_both_runtimes_publish_the_same_bytes(run: Run) -> None:
    await run.play(0, 30)
    await drain(run.log, *PROCESSORS, run_id=run.run_id)
    assert await run.processed()
    await assert_exactly_once(run.log, run.makers, run.run_id)
    # Once more from the beginning, for the other runtime.
    await run.rewind()
    with host(run, "faust") as on_faust:
        await until(run.processed, on_faust)
        assert await on_faust.end() == 0, on_faust.printed
    for topic in ("steps", "ratings"):
        bodies: dict[bytes, list[bytes]] = defaultdict(list)
        for record in await read(run.log, topic):
            bodies[record.headers["ce_id"]].append(record.value)
        ours = {event.event_id.encode() for event in await events(run.log, topic, run.run_id)}
        assert len(ours) > 50
        assert all(len(bodies[one]) == 2 and len(set(bodies[one])) == 1 for one in ours)


@chosen("runtime", ["faust"], ["generic"])
async def test_workers_share_partitions_and_survive_kill_and_rebalance(run: Run, runtime: str) -> None:
    with host(run, runtime, "first") as first, host(run, runtime, "second") as second:

        async def shared_by_two() -> bool:
            members = [held for held in (await run.members(runtime)).values() if held]
            return len(members) == 2 and set.union(*members) == set(range(8))

        await run.play(0, 10)
        await until(shared_by_two, first, second)
        await run.play(10, 10)
        await until(run.processed, first, second)
        playing = asyncio.ensure_future(_play_on(run, 20, 10))
        await first.end(signal.SIGKILL)
        await playing
        with host(run, runtime, "third") as third:  # the group moves while the killed one is missed
            await run.play(120, 10)
            await until(run.processed, second, third)
            assert await second.end() == 0, second.printed
            await run.play(130, 10)
            await until(run.processed)
            assert await third.end() == 0, third.printed
    await assert_exactly_once(run.log, run.makers, run.run_id)
    assert await events(run.log, "dead-letters", run.run_id) == []


async def _play_on(run: Run, first: int, batches: int) -> None:
    for batch in range(batches):
        await run.play(first + 10 * batch, 10)


async def test_at_the_end_of_a_run_what_is_there_is_processed_first(run: Run) -> None:
    faust = _config(STEP).model_dump() | {"log": run.location, "processors": {"runtime": "faust"}}
    ending = await Run.start(run.log, run.location, run.output, parse_config(faust))
    arguments = ["--run", ending.run_id, "--data", str(run.output), "--log", run.location]
    with worker(ending, [*SERVICE, *arguments]) as service:
        await ending.play(0, 1)
        await until(ending.processed, service)
        await ending.play(1, 60)
        assert await service.end() == 0, service.printed
    assert await ending.processed()
    await assert_exactly_once(run.log, ending.makers, ending.run_id)


@pytest.mark.parametrize(
    "command",
    ["faust", *(pytest.param(f"{how} faust", marks=pytest.mark.long) for how in ("plain", "restless"))],
)
async def test_a_bug_in_a_fold_stops_the_worker_loudly(run: Run, command: str) -> None:
    config = _config([{"type": f"{__name__}:Breaks"}])
    broken = await Run.start(run.log, run.location, run.output, config)
    await broken.play(0, 4)
    plain = {"plain faust": FAUST, "restless faust": RESTLESS}
    arguments = plain.get(command, [*OURS, "--run", broken.run_id, "--runtime", command])
    if command == "faust":
        with worker(broken, arguments) as refused:
            assert await refused.end(None) == 1, refused.printed
            assert "this process was not allowed" in refused.printed
    with worker(broken, arguments, allow_code=f"{__name__}:*") as doomed:
        assert await doomed.end(None) == 1, doomed.printed
        assert "failed with ZeroDivisionError: a bug" in doomed.printed
        assert command in plain or "Traceback" not in doomed.printed
    assert await events(run.log, "steps", broken.run_id) == []
    committed = await run.log.committed_positions(group_of("reward-processor", broken.run_id))
    own = [r for r in await broken.played() if r.key.startswith(f"{broken.run_id}/")]
    assert len(own) == 6
    assert all(committed[TopicPartition(r.topic, r.partition)] <= r.offset for r in own)


class Breaks(StepRewardTransform):
    """A transformation with a bug."""

    def __call__(self, *_: object) -> float:
        raise ZeroDivisionError("a bug")


@pytest.mark.long
async def test_on_fausts_own_command_line_where_it_would_read_on_does_not_matter(run: Run) -> None:
    await run.play(0, 10)
    ends = {at: end for topic in INPUTS for at, end in (await run.log.end_offsets(topic)).items()}
    producer = await run.log.producer(f"{run.run_id}-ahead")
    async with producer.transaction() as transaction:
        await transaction.commit_positions(f"unstable_stream-faust-{run.run_id}", ends)
    _abort_a_trajectory(run)
    with worker(run, [*FAUST, "--loglevel", "warn"]) as ahead:
        await until(run.processed, ahead)
        await run.play(10, 10)
        await until(run.processed)
        assert await ahead.end() == 0, ahead.printed
    await assert_exactly_once(run.log, run.makers, run.run_id)
    assert await run.log.committed_positions(f"unstable_stream-faust-{run.run_id}") == ends


async def test_what_faust_drops_is_read_again(run: Run) -> None:
    arguments = ["--run", run.run_id, "--runtime", "faust"]
    forgetful = [sys.executable, "-m", "tests.services.streams.forgetful_faust", "processors", *arguments]
    with worker(run, forgetful) as dropping:
        for first in (0, 10):
            await run.play(first, 10)
            await until(run.processed, dropping)
        assert await dropping.end() == 0, dropping.printed
    await assert_exactly_once(run.log, run.makers, run.run_id)


def test_faust_is_let_in_as_the_log_is() -> None:
    secret = {"UNSTABLE_STREAM_KAFKA_SASL_PASSWORD": "s3cret"}
    assert credentials(parse_location("kafka://host", secret)) is None
    tls = credentials(parse_location("kafka://host?security_protocol=SSL", {}))
    assert tls.protocol.value == "SSL"
    assert tls.context.check_hostname
    query = "security_protocol=SASL_SSL&sasl_mechanism=SCRAM-SHA-256&sasl_username=me"
    sasl = credentials(parse_location(f"kafka://host?{query}", secret))
    assert credentials_to_aiokafka_auth(sasl) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "me",
        "sasl_plain_password": "s3cret",
        "ssl_context": sasl.ssl_context,
    }
    assert "s3cret" not in repr(sasl)


def _abort_a_trajectory(run: Run) -> None:
    """Leave a record on the log that was never committed."""
    record = record_from_event(make_trajectory(1000, run_id=run.run_id))
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": run.location.removeprefix("kafka://"),
            "transactional.id": f"{run.run_id}-abort",
        }
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    headers: list[tuple[str, str | bytes | None]] = [*record.headers.items()]
    producer.produce(record.topic, record.value, record.key, headers=headers)
    producer.flush(DEADLINE_S)
    producer.abort_transaction(DEADLINE_S)


def test_faust_needs_kafka() -> None:
    with pytest.raises(ConfigError, match="the faust runtime needs a Kafka log, found log 'local'"):
        kafka_location("local")


# -- what joins on to what was processed --------------------------------------------------------------

AT = TopicPartition("trajectories", 3)


def _reading(offset: int, follows: int | None = None, session: int = 1) -> FaustReading:
    record = StoredRecord(AT.topic, AT.partition, offset, "", b"", {}, 0)
    return FaustReading(record, offset if follows is None else follows, session)


@pytest.mark.parametrize(
    ("batch", "session", "joined"),
    [
        # Offsets without records are no gap, but what was not read is.
        ([_reading(5), _reading(8, 6), _reading(9)], 1, ([5, 8, 9], False)),
        ([_reading(8, 6)], 1, ([], True)),
        ([_reading(8)], 1, ([], True)),
        # What was processed is passed over.
        ([_reading(3), _reading(4), _reading(5), _reading(4), _reading(6)], 1, ([5, 6], False)),
        # Records from before a seek are out of place, and do not cause another.
        ([_reading(100), _reading(101)], 2, ([], False)),
        ([_reading(100), _reading(6, 5, 2), _reading(7, 7, 2)], 2, ([6, 7], False)),
    ],
)
def test_records_join_on_to_those_processed(
    batch: list[FaustReading], session: int, joined: tuple[list[int], bool]
) -> None:
    records, astray = joined_on(batch, {AT: 5}, {TP(*AT): session})
    assert ([record.offset for record in records], bool(astray)) == joined
    assert joined_on(batch, {}, {}) == ([], set())  # the partition is not open
