"""The ledger of a run, a fold: ids alone prove that nothing was lost, done twice or hidden.

These statements must hold at every moment:

- games: started = finished + abandoned + in flight;
- steps: produced = trained + dropped (each with a reason) + pending, and the produced steps are those that
  the outcomes of the finished games lead to;
- every step, update and checkpoint has its causes in the log, and none counts twice.

This module keeps the books, :mod:`~.balance` weighs them. :class:`Evidence` is what a log holds of one run at
one moment. :class:`Ledger` takes all events of a run, in any topic order. A record delivered twice is
recognised by its event id and counted as *redelivered*. A game whose worker died may be played again; its
second trajectories and outcome may differ from the first, are ignored by every consumer, and are counted as
*replayed*. Any other id with two contents is a problem.
"""

from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from unstable_stream.errors import EventError
from unstable_stream.events import (
    Checkpoint,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Rating,
    RecordRejected,
    RunStarted,
    Step,
    StepsDropped,
    Trajectory,
    encode_event,
)
from unstable_stream.events.id_sets import DIGEST_BYTES, IdTable, body_digest
from unstable_stream.history.proofs.reports import Problem
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import read_to_end, readable_event
from unstable_stream.log.records import event_from_record, id_header
from unstable_stream.model_pool import RatingProcessor
from unstable_stream.reward_transformations import RewardProcessor, expected_steps_of
from unstable_stream.runs.history import RunStatus, read_history
from unstable_stream.runs.starts import deleted_records, recorded_starts, within
from unstable_stream.services.streams.processor import group_of


class RecordIndex:
    """Event ids to positions and digests. Fill it with :meth:`add`, then :meth:`seal`, then look up.

    A *slot* is a number from 0 that stands for one record.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._ids = IdTable()
        self._body_bytes = bytearray()
        self._partitions = array("i")
        self._offsets = array("q")
        self._sealed = False
        self.duplicates: list[tuple[int, int]] = []
        """Slots of repeated records with the same content, and of the records that they repeat."""
        self.conflicts: list[tuple[int, int]] = []
        """The same for repeated event ids with different content."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, partition: int, offset: int, event_id: str, body_digest: bytes) -> int:
        """Take one record in; return its slot."""
        if self._sealed:
            raise ValueError(f"the index of {self.topic} is sealed: {event_id} would never be found")
        self._ids.add(event_id)
        self._body_bytes += body_digest
        self._partitions.append(partition)
        self._offsets.append(offset)
        return len(self._offsets) - 1

    def seal(self) -> None:
        """Sort; nothing may be added afterwards. Doing it again changes nothing."""
        if self._sealed:
            return
        self._sealed = True
        self._ids.seal()
        for later, earlier in self._ids.repeated():
            same = self.body_digest(earlier) == self.body_digest(later)
            (self.duplicates if same else self.conflicts).append((later, earlier))

    def find(self, event_ids: Sequence[str]) -> list[int]:
        """Return the slot of the first record of each event id, -1 where there is none."""
        return self._ids.find(event_ids)

    def body_digest(self, slot: int) -> bytes:
        """Return the digest of the record."""
        return bytes(self._body_bytes[slot * DIGEST_BYTES : (slot + 1) * DIGEST_BYTES])

    def position(self, slot: int) -> tuple[int, int]:
        """Return partition and offset of the record."""
        return self._partitions[slot], self._offsets[slot]

    def where(self, slot: int) -> str:
        """``topic[partition]@offset`` of the record."""
        partition, offset = self.position(slot)
        return f"{TopicPartition(self.topic, partition)}@{offset}"


ABSENT: Final = -1
"""Instead of a record's slot in its index: no such record has been read."""
MAY_BE_REPLAYED: Final = (Trajectory, GameOutcome, GameAbandoned)
"""A game whose worker died may give each of these twice, with other content."""


@dataclass(slots=True)
class LedgerGame:
    """A game by its start and its ends: slots of their records, and what its outcome promises."""

    game_id: str
    split: str
    game_index: int
    started: int = ABSENT
    abandoned: int = ABSENT
    finished: int = ABSENT
    seats: tuple[tuple[int, float, int], ...] = ()
    """Each trained seat, its reward and its turns."""
    steps: int = 0
    """Expected without the filter of games that the opponent's invalid move ended."""
    filtered_steps: int = 0
    """Expected with it."""
    learning: frozenset[int] | None = None
    """Seats with steps, as the first trajectory says: others that a second play asks yield none."""


@dataclass(slots=True)
class LedgerView:
    """A trajectory; all but ``number`` is unknown while only its steps have been read."""

    number: int
    """Counts trajectories in the order in which they were first heard of."""
    slot: int = ABSENT
    game: LedgerGame | None = None
    seat: int = 0
    reward: float = 0.0
    turns: int = 0
    trained: bool = False
    filtered: bool = False


class Update(NamedTuple):
    """A learner update, or a record of steps dropped outside of one."""

    slot: int
    """Of its record in the index of ``kind``."""
    event_id: str
    model_uid: str | None
    step_ids: bytes
    """Trained and dropped, a line each: a third of what as many strings take."""
    trained: int = 0
    """The number of them that were trained on."""
    kind: type[Event] = LearnerUpdate


def named(key: tuple[str, object]) -> str:
    """Return the name of an update: its number, after the model's name if the run trains several."""
    model, number = key
    return f"{model}/{number}" if model else str(number)


class Ledger:
    """The fold. About 100 bytes of memory for every step, 600 for every game and every trajectory."""

    def __init__(self, run: RunStatus, *, steps_kept: bool = True) -> None:
        """Start an empty ledger.

        Args:
            run: what is known of the run; events that tell more of it are folded into it.
            steps_kept: whether the log still holds all of ``steps``; if retention has cut it, the absence of
                a step proves nothing.
        """
        self.run = run
        self.steps_kept = steps_kept
        self.indexes: dict[type[Event], RecordIndex] = {}
        self.games: dict[str, LedgerGame] = {}
        self.views: dict[str, LedgerView] = {}
        # Of each record in the index of steps: the number of its trajectory, and its turn.
        self.step_views = array("i")
        self.step_turns = array("i")
        self.dropped: Counter[str] = Counter()
        self.updates: dict[tuple[str, int], Update] = {}
        """By the trained model's name, empty for the only one of a run, and the number of its update."""
        self.drops: dict[str, Update] = {}
        """Records of steps dropped outside of an update, by event id."""
        self.checkpoints: dict[tuple[str, int], tuple[str, Checkpoint]] = {}
        """By model and iteration, each with its ``topic[partition]@offset``."""
        self.rejected: dict[str, str] = {}
        """By position of a record on ``dead-letters``, the run whose consumer set it aside."""
        self.letters: set[str] = set()
        """Ids of trajectories on ``dead-letters``, by their headers: also of those that cannot be decoded."""
        self.unreadable: dict[str, str] = {}
        """By position, the errors of records that are no events: consumers must have set them aside."""
        self.problems: list[Problem] = []

    # -- fold ---------------------------------------------------------------------------------

    def apply(self, event: Event, partition: int, offset: int) -> None:
        """Take one event in, from this place of its topic. Those of other runs change nothing."""
        if isinstance(event, RecordRejected):
            if not event.consumer.startswith("plugin/"):  # what a plug-in failed at, the run may have used
                self.rejected[f"{event.topic}[{event.partition}]@{event.offset}"] = event.run_id
                if event.topic == Trajectory.TOPIC:
                    self.letters.add(id_header(event.record_headers))
        elif event.run_id == self.run.run_id:
            self.run.heard_at_ms = max(self.run.heard_at_ms, event.occurred_at_ms)
            index = self.records(type(event))
            slot = index.add(partition, offset, event.event_id, body_digest(encode_event(event)))
            apply = _APPLY.get(type(event))
            if apply is None:
                self.run.apply(event)
            else:
                apply(self, event, slot)

    def _game(self, event: GameStarted | GameAbandoned | GameOutcome | Trajectory) -> LedgerGame:
        game = LedgerGame(event.game_id, event.split, event.game_index)
        return self.games.setdefault(event.game_id, game)

    # Of events with one id the first one counts, as it does for every consumer.

    def _apply_started(self, event: GameStarted, slot: int) -> None:
        game = self._game(event)
        game.started = slot if game.started == ABSENT else game.started

    def _apply_abandoned(self, event: GameAbandoned, slot: int) -> None:
        game = self._game(event)
        game.abandoned = slot if game.abandoned == ABSENT else game.abandoned

    def _apply_outcome(self, event: GameOutcome, slot: int) -> None:
        game = self._game(event)
        if game.finished == ABSENT:
            game.finished = slot
            game.seats = tuple((seat.seat, seat.reward, seat.turns) for seat in event.seats if seat.trained)
            game.steps, game.filtered_steps = (
                sum(expected_steps_of(event, filter_opponent_invalid=filtered).values())
                for filtered in (False, True)
            )

    def _view(self, trajectory: str) -> LedgerView:
        return self.views.setdefault(trajectory, LedgerView(len(self.views)))

    def _apply_trajectory(self, event: Trajectory, slot: int) -> None:
        view = self._view(event.event_id)
        if view.slot == ABSENT:
            view.slot, view.game, view.seat = slot, self._game(event), event.seat
            view.reward, view.turns = event.reward, len(event.turns)
            if view.game.learning is None:
                view.game.learning = frozenset(
                    event.trained_seats or ((event.seat,) if event.trained else ())
                )
            view.trained = event.trained and event.split == "train" and event.seat in view.game.learning
            view.filtered = event.opponent_invalid

    def _apply_step(self, event: Step, slot: int) -> None:
        self.step_views.append(self._view(event.trajectory_id).number)
        # No trajectory has a turn of another number, so such a step matches none.
        self.step_turns.append(event.turn_index if 0 <= event.turn_index < 2**31 else ABSENT)

    def _apply_update(self, event: LearnerUpdate, slot: int) -> None:
        key = (event.model or "", event.update)
        first = self.updates.get(key)
        if first is not None:
            if first.event_id != event.event_id:
                where = self.where(LearnerUpdate, slot)
                self.problems.append(
                    Problem("update made twice", f"{where}: update {named(key)} was made before")
                )
            return
        self.run.apply(event)
        self.dropped.update(drop.reason for drop in event.dropped)
        ids = (*event.step_ids, *(drop.step_id for drop in event.dropped))
        names = "\n".join(ids).encode()
        self.updates[key] = Update(slot, event.event_id, event.model_uid, names, len(event.step_ids))

    def _apply_drops(self, event: StepsDropped, slot: int) -> None:
        if event.event_id not in self.drops:
            self.dropped.update(drop.reason for drop in event.dropped)
            ids = "\n".join(drop.step_id for drop in event.dropped)
            self.drops[event.event_id] = Update(slot, event.event_id, None, ids.encode(), kind=StepsDropped)

    def _apply_checkpoint(self, event: Checkpoint, slot: int) -> None:
        self.run.apply(event)
        key = (event.model or "", event.iteration)
        self.checkpoints.setdefault(key, (self.where(Checkpoint, slot), event))

    # -- what was read ------------------------------------------------------------------------

    def records(self, kind: type[Event]) -> RecordIndex:
        """Return the index of the records of one kind of event: by id, with the digests of their events."""
        if kind not in self.indexes:
            self.indexes[kind] = RecordIndex(kind.TOPIC)
        return self.indexes[kind]

    def where(self, kind: type[Event], slot: int) -> str:
        return self.records(kind).where(slot)


_APPLY: Final[Mapping[type[Event], Callable[..., None]]] = {
    GameStarted: Ledger._apply_started,
    GameAbandoned: Ledger._apply_abandoned,
    GameOutcome: Ledger._apply_outcome,
    Trajectory: Ledger._apply_trajectory,
    Step: Ledger._apply_step,
    LearnerUpdate: Ledger._apply_update,
    StepsDropped: Ledger._apply_drops,
    Checkpoint: Ledger._apply_checkpoint,
}


# The end of the run first, since it claims that all else is there. Then effects before causes: of a run that
# is going on, every effect below the ends has its cause there. What is appended at once stands together.
_TOPICS: Final = (
    (RunStarted.TOPIC,),
    (RecordRejected.TOPIC,),
    (LearnerUpdate.TOPIC, Checkpoint.TOPIC),
    (Rating.TOPIC,),
    (Step.TOPIC,),
    (Trajectory.TOPIC, GameOutcome.TOPIC, GameStarted.TOPIC),
)
_REPORT_EVERY: Final = 200

Progress = Callable[[str, int, int], None]
"""Called with the present check, the number of its finished records, and the most there can be."""


@dataclass(frozen=True)
class Evidence:
    """One run as the log holds it at one moment: nothing beyond ``ends`` is looked at."""

    log: EventLog
    run: RunStatus
    ends: Mapping[str, Positions]
    """By topic."""
    trimmed: Mapping[str, bool]
    """By topic, true if retention has deleted records that may be of the run."""
    missing: Sequence[str]
    """Tells in words which of these records are gone; steps and ratings follow from the others."""
    starts: Positions
    """The offsets at which the run began: none of its records lies below."""
    compacted: bool
    """True if only the newest rating of each model is certain to exist."""
    processed: Mapping[str, Positions]
    """By topic, the positions of its processor; empty if they are unknown."""
    progress: Progress

    @classmethod
    async def read(
        cls, log: EventLog, run_id: str, progress: Progress = lambda what, done, total: None
    ) -> "Evidence":
        """Look at the log now; raises :class:`RunError` if there is no run of exactly this id."""
        run = (await read_history(log)).run(run_id)
        # Read the positions before the ends: all results of processed records are then below the ends.
        processed = {
            processor.inputs[0]: await _processed(log, processor.name, run_id)
            for processor in (RewardProcessor, RatingProcessor)
        }
        ends = await _ends(log)
        settings = await log.topic_settings()
        began = recorded_starts(run.began, await log.log_id(), ends)
        trimmed: dict[str, bool] = {}
        for topic in ends:
            kept = await log.beginning_offsets(topic)
            trimmed[topic] = any(begin > began.get(at, 0) for at, begin in kept.items())
        return cls(
            log=log,
            run=run,
            ends=ends,
            trimmed=trimmed,
            missing=await deleted_records(log, began, ends),
            starts=await within(log, began),
            compacted=log.compacts and settings[Rating.TOPIC].cleanup_policy == "compact",
            processed=processed,
            progress=progress,
        )

    async def ledger(self) -> Ledger:
        """Fold all of it into a ledger."""
        ledger = Ledger(self.run, steps_kept=not self.trimmed[Step.TOPIC])
        for topic in self.ends:
            # The archiver rejects records on behalf of all runs.
            whose = None if topic == RecordRejected.TOPIC else self.run.run_id
            async for record in self._records(topic, f"reading {topic}", whose):
                try:
                    event = event_from_record(record)
                except EventError as error:
                    # Nobody writes a letter about a dead letter, so none can be missing.
                    if topic != RecordRejected.TOPIC:
                        ledger.unreadable[str(record)] = str(error)
                else:
                    ledger.apply(event, record.partition, record.offset)
        return ledger

    async def events(self, topic: str, what: str) -> AsyncIterator[tuple[StoredRecord, Event]]:
        """Yield the run's events of a topic, and report progress as ``what``."""
        async for record in self._records(topic, what, self.run.run_id):
            event = readable_event(record)
            if event is not None and event.run_id == self.run.run_id:
                yield record, event

    async def _records(self, topic: str, what: str, run_id: str | None) -> AsyncIterator[StoredRecord]:
        ends = self.ends[topic]
        done, total = 0, sum(ends.values())
        starts = None
        if run_id is not None:
            starts = {at: start for at, start in self.starts.items() if at.topic == topic}
        async for record in read_to_end(self.log, (topic,), run_id=run_id, starts=starts, ends=ends):
            yield record
            done += 1
            if done % _REPORT_EVERY == 0:
                self.progress(what, done, total)


async def _ends(log: EventLog) -> dict[str, Positions]:
    ends: dict[str, Positions] = {}
    for topics in _TOPICS:
        first = topics[0]
        while first not in ends or (await log.end_offsets(first)) != ends[first]:
            for topic in topics:
                ends[topic] = await log.end_offsets(topic)
            if len(topics) == 1:
                break
    return ends


async def _processed(log: EventLog, processor: str, run_id: str) -> Positions:
    """Return the positions of a processor, which may serve this run or all runs."""
    alone = await log.committed_positions(group_of(processor, run_id))
    shared = await log.committed_positions(group_of(processor, None))
    return {at: max(alone.get(at, 0), shared.get(at, 0)) for at in alone.keys() | shared.keys()}
