"""Games for the processors to fold, and what must have come of them however they were hosted."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.model_pool.outcomes import make_outcome
from tests.reward_transformations.trajectories import RUN, make_trajectory
from unstable_stream.events import Event, RecordRejected, decode_event, encode_event
from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_to_end, settled_ends
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.model_pool import RatingProcessor
from unstable_stream.reward_transformations import RewardProcessor
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.fold_sink import FoldSink
from unstable_stream.services.streams.processor import ProcessorSpec, group_of
from unstable_stream.services.streams.processors import host_processors
from unstable_stream.services.streams.run_configs import RunDirectory
from unstable_stream.services.streams.snapshots import POSITION, SnapshotPace, scope_of

AnyProcessor = RewardProcessor | RatingProcessor

ENVIRONMENTS = 4
OTHER_RUN = "run-b"


def games(first: int, count: int, run_id: str = RUN, other_run: str = OTHER_RUN) -> list[Record]:
    """Mirror games and games against a fixed opponent, in several environments, another run in between."""
    made: list[Event] = []
    for index in range(first, first + count):
        env_id = f"Env-{index % ENVIRONMENTS}"
        rewards = {0: 1.0 - index % 3, 1: index % 3 - 1.0}
        trained = (0, 1) if index % 2 else (index % 4 // 2,)
        made += [
            make_trajectory(index, seat, env_id=env_id, rewards=rewards, trained_seats=trained, run_id=run_id)
            for seat in trained
        ]
        opponent = "ckpt-000002" if index % 2 else "fixed"
        seats = {0: ("ckpt-000003", rewards[0]), 1: (opponent, rewards[1])}
        made.append(make_outcome(index, seats, env_id=env_id, run_id=run_id))
        made.append(make_trajectory(index, run_id=other_run, env_id=env_id))
    return [record_from_event(event) for event in made]


def garbage(run_id: str = RUN) -> Record:
    """A record that is no event."""
    return Record(
        topic="trajectories", key=f"{run_id}/Env-1", value=b'{"type": "trajectory"', timestamp_ms=17
    )


async def read(log: EventLog, topic: str) -> list[StoredRecord]:
    """All that a topic holds: on Kafka a commit may be answered a moment before its records can be read."""
    ends = await settled_ends(log, (topic,))
    return [record async for record in read_to_end(log, (topic,), ends=ends)]


async def events(log: EventLog, topic: str, run_id: str | None = None) -> list[Event]:
    """All events of a topic, or those of one run."""
    found = [event_from_record(record) for record in await read(log, topic)]
    return [event for event in found if run_id in (None, event.run_id)]


async def letters(log: EventLog) -> list[RecordRejected]:
    """All dead letters."""
    return [event for event in await events(log, "dead-letters") if isinstance(event, RecordRejected)]


@dataclass
class _Noted:
    """Notes the events that a processor is given."""

    processor: Any
    given: list[Event]

    def handle(self, event: Event) -> Sequence[Event]:
        self.given.append(event)
        made: Sequence[Event] = self.processor.handle(event)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name)


class Noting:
    """The same processor, and the events that each one made from now on is given."""

    def __init__(self, spec: ProcessorSpec, make: Callable[[str], Any] | None = None) -> None:
        """``make``: makes it from the run's id alone, in place of the spec's."""
        self.made: dict[str, list[list[Event]]] = defaultdict(list)

        def noted(run_id: str, config: RunConfig) -> _Noted:
            self.made[run_id].append([])
            one = spec.make(run_id, config) if make is None else make(run_id)
            return _Noted(one, self.made[run_id][-1])

        self.spec = replace(spec, make=noted)

    @property
    def given(self) -> list[Event]:
        return [event for made in self.made.values() for given in made for event in given]


def settings(final: Sequence[Any] = (), **others: Any) -> dict[str, Any]:
    """Of a run with these final transformations."""
    rewards = {"final": list(final)}
    return {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}], "rewards": rewards} | others


async def start(log: EventLog, run_id: str, final: Sequence[Any] = ()) -> None:
    """Start a run with these final transformations."""
    await start_run(log, parse_config(settings(final)), run_id)


async def drain(
    log: EventLog,
    *specs: ProcessorSpec,
    run_id: str | None = RUN,
    pace: SnapshotPace = SnapshotPace(),  # noqa: B008  # frozen
    max_records: int = 500,
) -> None:
    """Host processors until they have processed what is there."""
    stop = asyncio.Event()
    stop.set()
    async with RunDirectory(log) as runs:
        sinks = [FoldSink(log, spec, runs, run_id, pace=pace) for spec in specs]
        await host_processors(sinks, stop=stop, max_records=max_records)


async def forget_snapshots(
    log: EventLog, spec: ProcessorSpec, run_id: str | None, names: Sequence[str] = (POSITION,)
) -> None:
    """Delete the snapshots of a processor, or these states of them."""
    for topic in spec.inputs:
        for at in await log.end_offsets(topic):
            producer = await log.producer(scope_of(group_of(spec.name, run_id), at))
            async with producer.transaction() as transaction:
                await transaction.save(scope_of(group_of(spec.name, run_id), at), dict.fromkeys(names, b""))
            await producer.close()


async def from_scratch(log: EventLog, make: Callable[[], AnyProcessor]) -> dict[str, bytes]:
    """Every output of folding each input partition on its own, by event id."""
    processors: dict[TopicPartition, AnyProcessor] = defaultdict(make)
    expected: dict[str, bytes] = {}
    for topic in make().inputs:
        for record in await read(log, topic):
            if record.value == garbage().value:
                continue
            processor = processors[TopicPartition(topic, record.partition)]
            for event in processor.handle(decode_event(record.value)):
                assert event.event_id not in expected
                expected[event.event_id] = encode_event(event)
    return expected


async def assert_exactly_once(
    log: EventLog, makers: Sequence[Callable[[], AnyProcessor]], run_id: str = RUN
) -> None:
    """Nothing missing, nothing twice, the same bytes as a fold in memory; all of it committed."""
    for make in makers:
        topic = {"reward-processor": "steps", "rating-processor": "ratings"}[make().name]
        published = [(event.event_id, encode_event(event)) for event in await events(log, topic, run_id)]
        assert len(published) == len({identity for identity, _ in published})
        assert dict(published) == await from_scratch(log, make)
        committed = await log.committed_positions(group_of(make().name, run_id))
        for input_topic in make().inputs:
            ends = await log.end_offsets(input_topic)
            for record in await read(log, input_topic):
                at = TopicPartition(record.topic, record.partition)
                assert record.offset < committed[at] <= ends[at]
