"""The audit, a fold: proves from the log alone that a run lost nothing, did nothing twice and hides nothing.

What must hold at every moment:

- games: started = finished + abandoned + in flight;
- steps: produced = trained + dropped (each with a reason) + pending, and what is produced is what the
  outcomes of the finished games make one expect;
- every step, update and checkpoint has its causes in the log, and none counts twice.

:class:`RunAudit` is a fold over all events of a run, in any topic order. A record delivered twice is
recognised by its event id and counted as *redelivered*. A game whose worker died may be played again; its
second trajectories and outcome may differ from the first, are ignored by every consumer, and are counted
as *replayed*. Any other id with two contents is a problem.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from unstable_stream.events import (
    Checkpoint,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    RecordRejected,
    RunFinished,
    RunResumed,
    RunStarted,
    Step,
    Trajectory,
    checkpoint_uid,
    encode_event,
    trajectory_id,
)
from unstable_stream.reward_transformations import expected_steps
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import RunStatus

__all__ = ["AuditReport", "GameCounts", "RunAudit", "StepCounts"]

_SHOWN_OF_A_KIND: Final = 20


class _Seen(NamedTuple):
    digest: bytes
    where: str


class _Game(NamedTuple):
    game_index: int
    split: str
    where: str


class _Played(NamedTuple):
    """What an outcome promises: by trained seat, reward, turns and steps without and with the filter."""

    game_index: int
    split: str
    where: str
    seats: Mapping[int, tuple[float, int]]
    steps: tuple[int, int]


class _View(NamedTuple):
    """A trajectory: whose game, which seat, and the steps it yields without and with the filter."""

    game_id: str
    seat: int
    reward: float
    turns: int
    where: str
    trained: bool
    filtered: bool


@dataclass(frozen=True, slots=True)
class GameCounts:
    """The games of one split."""

    started: int
    finished: int
    abandoned: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Where the training steps are."""

    expected: int
    """What the outcomes of the finished games make one expect."""
    produced: int
    """Really in ``steps``."""
    set_aside: int
    """Of trajectories that are on ``dead-letters``."""
    unshaped: int
    """Of trajectories that the reward processor has yet to read."""
    trained: int
    dropped: Mapping[str, int]
    """By reason."""
    pending: int
    """Produced, neither trained nor dropped."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found."""

    run_id: str
    state: str
    """``running`` (or killed), ``completed``, ``stopped`` or ``failed``."""
    games: Mapping[str, GameCounts]
    steps: StepCounts
    updates: int
    checkpoints: int
    redelivered: int
    replayed: int
    rejected: int
    """Records on ``dead-letters``."""
    problems: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass
class RunAudit:
    """The fold. About 300 bytes of memory for every step and game of the run."""

    run_id: str
    steps_kept: bool = True
    """Whether the log still holds all of ``steps``; if retention has cut it, its absence proves nothing."""
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _problems: list[tuple[str, str]] = field(default_factory=list)
    _started: dict[str, _Game] = field(default_factory=dict)
    _abandoned: dict[str, _Game] = field(default_factory=dict)
    _played: dict[str, _Played] = field(default_factory=dict)
    _views: dict[str, _View] = field(default_factory=dict)
    _steps: dict[str, tuple[str, int]] = field(default_factory=dict)
    _consumed: dict[str, str] = field(default_factory=dict)
    _trained: int = 0
    _dropped: Counter[str] = field(default_factory=Counter)
    _updates: dict[int, LearnerUpdate] = field(default_factory=dict)
    _checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    _rejected: dict[str, str] = field(default_factory=dict)
    """Position of each record on ``dead-letters`` to the run whose consumer put it there."""
    _unreadable: dict[str, str] = field(default_factory=dict)
    _redelivered: int = 0
    _replayed: int = 0
    _run: RunStatus = field(init=False)

    def __post_init__(self) -> None:
        self._run = RunStatus(self.run_id)

    @property
    def _replays(self) -> bool:
        """Whether its steps are replayed ones of its parent: their trajectories are the parent's too."""
        return self._run.replayed_run_id is not None

    @property
    def _config(self) -> RunConfig | None:
        """What it runs with; ``None`` if it never started."""
        return self._run.config() if self._run.settings else None

    # -- fold ---------------------------------------------------------------------------------

    def apply(self, event: Event, where: str) -> None:
        """Take one event in; ``where`` is its ``topic[partition]@offset``. Other runs' change nothing."""
        if isinstance(event, RecordRejected):
            if event.consumer.startswith("plugin/"):
                return  # what a plug-in failed at, the run's own consumers may have used
            self._rejected[f"{event.topic}[{event.partition}]@{event.offset}"] = event.run_id
        elif event.run_id == self.run_id and self._is_new(event, where):
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, where)

    def apply_unreadable(self, where: str, error: str) -> None:
        """Take in a record that is no event: consumers must have set it aside."""
        self._unreadable[where] = error

    def _is_new(self, event: Event, where: str) -> bool:
        digest = hashlib.blake2b(encode_event(event), digest_size=8).digest()
        first = self._seen.setdefault(event.event_id, _Seen(digest, where))
        if first.where == where:
            return True
        if first.digest == digest:
            self._redelivered += 1
        elif isinstance(event, Trajectory | GameOutcome | GameAbandoned):
            self._replayed += 1
        else:
            self._problem(
                "event id with two contents",
                f"{where}: {type(event).__name__} {event.event_id} was at {first.where} with other content",
            )
        return False

    def _problem(self, kind: str, text: str) -> None:
        self._problems.append((kind, text))

    def _apply_run(self, event: Event, where: str) -> None:
        self._run.apply(event)

    def _apply_started(self, event: GameStarted, where: str) -> None:
        self._started[event.game_id] = _Game(event.game_index, event.split, where)

    def _apply_abandoned(self, event: GameAbandoned, where: str) -> None:
        self._abandoned[event.game_id] = _Game(event.game_index, event.split, where)

    def _apply_outcome(self, event: GameOutcome, where: str) -> None:
        self._played[event.game_id] = _Played(
            event.game_index,
            event.split,
            where,
            {seat.seat: (seat.reward, seat.turns) for seat in event.seats if seat.trained},
            (
                expected_steps(event, filter_opponent_invalid=False),
                expected_steps(event, filter_opponent_invalid=True),
            ),
        )

    def _apply_trajectory(self, event: Trajectory, where: str) -> None:
        self._views[event.event_id] = _View(
            event.game_id,
            event.seat,
            event.reward,
            len(event.turns),
            where,
            event.trained and event.split == "train",
            event.opponent_invalid,
        )

    def _apply_step(self, event: Step, where: str) -> None:
        self._steps[event.event_id] = (event.trajectory_id, event.turn_index)

    def _apply_update(self, event: LearnerUpdate, where: str) -> None:
        if event.update in self._updates:
            self._problem("update made twice", f"{where}: update {event.update} was made before")
            return
        self._updates[event.update] = event
        self._trained += len(event.step_ids)
        self._dropped.update(drop.reason for drop in event.dropped)
        for step_id in (*event.step_ids, *(drop.step_id for drop in event.dropped)):
            if step_id in self._consumed:
                self._problem(
                    "step trained or dropped twice",
                    f"{where}: step {step_id} was consumed at {self._consumed[step_id]} already",
                )
            self._consumed[step_id] = where

    def _apply_checkpoint(self, event: Checkpoint, where: str) -> None:
        self._checkpoints[event.iteration] = event

    # -- judgement ----------------------------------------------------------------------------

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints, by iteration."""
        return [self._checkpoints[iteration] for iteration in sorted(self._checkpoints)]

    @property
    def state(self) -> str:
        """See :attr:`AuditReport.state`."""
        return self._run.state

    def report(self, more_problems: Iterable[tuple[str, str]] = ()) -> AuditReport:
        """Weigh what has been folded; ``more_problems`` are found outside the log, as (kind, text)."""
        problems = [*self._problems]
        games = {split: self._count_games(split) for split in ("train", "eval")}
        problems += self._game_problems(games)
        steps, step_problems = self._count_steps()
        problems += step_problems
        problems += self._update_problems()
        problems += self._checkpoint_problems()
        if self.state == "completed":
            problems += [
                ("bad record not on dead-letters", f"{where}: {error}")
                for where, error in self._unreadable.items()
                if where not in self._rejected
            ]
        problems += more_problems
        return AuditReport(
            run_id=self.run_id,
            state=self.state,
            games=games,
            steps=steps,
            updates=len(self._updates),
            checkpoints=len(self._checkpoints),
            redelivered=self._redelivered,
            replayed=self._replayed,
            rejected=sum(
                run_id == self.run_id or where in self._unreadable for where, run_id in self._rejected.items()
            ),
            problems=_abridged(problems),
        )

    def _count_games(self, split: str) -> GameCounts:
        started = {game_id for game_id, game in self._started.items() if game.split == split}
        finished = {game_id for game_id, game in self._played.items() if game.split == split}
        # A game given up by one worker and finished by another counts as finished: its steps exist.
        abandoned = {id_ for id_, game in self._abandoned.items() if game.split == split} - finished
        return GameCounts(len(started), len(finished), len(abandoned), len(started - finished - abandoned))

    def _game_problems(self, games: Mapping[str, GameCounts]) -> Iterable[tuple[str, str]]:
        for ended in (self._played, self._abandoned):
            for game_id, game in ended.items():
                if game_id not in self._started:
                    yield "game never started", f"{game.where}: game {game_id} ended, but never started"
        for split, counts in games.items():
            indices = {game.game_index for game in self._started.values() if game.split == split}
            first = self._run.games_before if split == "train" else 0
            for missing in sorted(set(range(first, max(indices, default=-1) + 1)) - indices):
                yield "game index left out", f"{split} game {missing} was never started, later ones were"
            if counts.started != counts.finished + counts.abandoned + counts.in_flight:
                yield (
                    "games do not add up",
                    f"{split}: {counts.started} started, but {counts.finished} finished + "
                    f"{counts.abandoned} abandoned + {counts.in_flight} in flight",
                )
            if self.state == "completed" and counts.in_flight:
                yield "games in flight", f"the run is over, but {counts.in_flight} {split} games never ended"

    def _count_steps(self) -> tuple[StepCounts, list[tuple[str, str]]]:
        config = self._config
        filtering = config is not None and config.collector.filter_opponent_invalid
        problems: list[tuple[str, str]] = []
        found: dict[str, list[int]] = {}
        for trajectory, turn_index in () if self._replays else self._steps.values():
            found.setdefault(trajectory, []).append(turn_index)
        problems += self._view_problems()
        unshaped = set_aside = 0
        for trajectory, view in self._views.items():
            if not view.trained:
                continue
            turns = [] if filtering and view.filtered else list(range(view.turns))
            got = sorted(found.pop(trajectory, []))
            if got == turns or not self.steps_kept:
                continue
            if not got and view.where in self._rejected:
                set_aside += len(turns)
                continue
            if not got and self.state != "completed":
                unshaped += len(turns)
                continue
            problems.append(
                (
                    "steps do not match their trajectory",
                    f"{view.where}: trajectory {trajectory} has {len(turns)} turns to train on, but steps "
                    f"{got} are in the log",
                )
            )
        for trajectory, got in found.items():
            problems.append(
                (
                    "steps without trajectory",
                    f"{len(got)} steps are of trajectory {trajectory}, absent from the log or not trained",
                )
            )
        if self.steps_kept:
            problems += [
                ("unknown step consumed", f"{where}: step {step_id} is not in the log")
                for step_id, where in self._consumed.items()
                if step_id not in self._steps
            ]
        expected = sum(played.steps[filtering] for played in self._played.values())
        if self._replays:
            expected = len(self._steps)  # no game of its own promises any
        produced = len(self._steps) if self.steps_kept else expected
        dropped = sum(self._dropped.values())
        counts = StepCounts(
            expected=expected,
            produced=produced,
            set_aside=set_aside,
            unshaped=unshaped,
            trained=self._trained,
            dropped=dict(sorted(self._dropped.items())),
            pending=produced - self._trained - dropped,
        )
        if expected != produced + set_aside + unshaped:
            problems.append(
                (
                    "steps do not add up",
                    f"the outcomes promise {expected} steps, but {produced} were produced, {set_aside} are "
                    f"on dead-letters and {unshaped} still to be shaped",
                )
            )
        return counts, problems

    def _view_problems(self) -> Iterable[tuple[str, str]]:
        for trajectory, view in self._views.items():
            game = self._played.get(view.game_id)
            if game is None:
                yield (
                    "trajectory without outcome",
                    f"{view.where}: game {view.game_id} of trajectory {trajectory} has no outcome",
                )
            elif view.trained and game.seats.get(view.seat) != (view.reward, view.turns):
                yield (
                    "trajectory and outcome differ",
                    f"{view.where}: seat {view.seat} has reward {view.reward} after {view.turns} turns, the "
                    f"outcome at {game.where} says {game.seats.get(view.seat)}",
                )
        for game_id, game in self._played.items():
            if game.split != "train":
                continue
            for seat, (_, turns) in game.seats.items():
                if turns and trajectory_id(game_id, seat) not in self._views:
                    yield "trajectory missing", f"{game.where}: seat {seat} of game {game_id} has none"

    def _update_problems(self) -> Iterable[tuple[str, str]]:
        expected = range(self._run.updates_before + 1, max(self._updates, default=0) + 1)
        for missing in sorted(set(expected) - self._updates.keys()):
            yield "update left out", f"there is no update {missing}, but later ones"
        for number, update in self._updates.items():
            if update.model_uid not in (None, checkpoint_uid(number)):
                yield "wrong checkpoint", f"update {number} names checkpoint {update.model_uid}"
            if (update.model_uid is not None) != (number in self._checkpoints):
                yield (
                    "update and checkpoint differ",
                    f"update {number} names checkpoint {update.model_uid}, topic checkpoints has "
                    f"{'one' if number in self._checkpoints else 'none'}",
                )
        config = self._config
        if config is None:
            yield "run never started", f"there is no run-started event of {self.run_id}"
        elif self.state == "completed":
            needed = config.learner.iterations - self._run.updates_before
            if len(self._updates) < needed:
                yield (
                    "updates missing",
                    f"the run is completed with {len(self._updates)} of {needed} updates",
                )

    def _checkpoint_problems(self) -> Iterable[tuple[str, str]]:
        for iteration, checkpoint in self._checkpoints.items():
            if iteration > self._run.updates_before and iteration not in self._updates:
                yield "checkpoint without update", f"no update made checkpoint {checkpoint.model_uid}"
        if self._updates and self._run.updates_before not in self._checkpoints:
            yield "checkpoint missing", "the initial policy was never published"


_HANDLERS: Final[Mapping[type[Event], Callable[..., None]]] = {
    RunStarted: RunAudit._apply_run,
    RunResumed: RunAudit._apply_run,
    RunFinished: RunAudit._apply_run,
    GameStarted: RunAudit._apply_started,
    GameAbandoned: RunAudit._apply_abandoned,
    GameOutcome: RunAudit._apply_outcome,
    Trajectory: RunAudit._apply_trajectory,
    Step: RunAudit._apply_step,
    LearnerUpdate: RunAudit._apply_update,
    Checkpoint: RunAudit._apply_checkpoint,
}


def _abridged(problems: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """One line per problem, of each kind the first few and a count of the rest."""
    by_kind: dict[str, list[str]] = {}
    for kind, text in problems:
        by_kind.setdefault(kind, []).append(text)
    lines = []
    for kind, texts in by_kind.items():
        lines += [f"{kind}: {text}" for text in texts[:_SHOWN_OF_A_KIND]]
        if len(texts) > _SHOWN_OF_A_KIND:
            lines.append(f"{kind}: and {len(texts) - _SHOWN_OF_A_KIND} more")
    return tuple(lines)
