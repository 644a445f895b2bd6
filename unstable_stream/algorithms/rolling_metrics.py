"""The rolling metrics of a run: a fold of its games and updates into numbers under the documented names.

===================  =====================  =================================================================
Prefix               Folded from            Means of
===================  =====================  =================================================================
``collection-ENV/``  trajectories that are  the latest 512 values: reward, results, format, lengths
                     trained on, outcomes
``evaluation-ENV/``  trajectories of the    the same of evaluation games, also by opponent
                     eval split, outcomes
``learner/``         learner updates        nothing: the numbers of each update as they are
===================  =====================  =================================================================

A run that trains several models has the name of the model behind the prefix of what is folded from
trajectories and updates: ``collection-ENV/MODEL/``, ``learner/MODEL/``.

Each name is folded from one topic and one key of it, so in one order: the same events give the same numbers,
whichever process folds them and however the topics are divided into partitions. The step axis is the number
of the learner update: the newest policy version that has played.

Means are published when the policy version rises, so that each has its point, and otherwise after 64 seconds
of the events' own time. Nothing asks a clock.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

from unstable_stream.events import (
    Event,
    GameOutcome,
    LearnerUpdate,
    Metrics,
    Trajectory,
    event_id,
    trained_model,
)
from unstable_stream.events.arrays import packed_length
from unstable_stream.events.id_sets import IndexSet

WINDOW: Final = 512
"""The latest values that a mean is of."""
FLUSH_EVERY_S: Final = 64.0
"""Seconds of event time after which means are published although the policy version is the same."""
SOURCE: Final = "tracker"
"""``source`` of the metrics."""

_PREFIXES: Final = {"train": "collection", "eval": "evaluation"}
_FORMAT: Final = "correct_answer_format"
Sample = tuple[str, float]


@dataclass(slots=True)
class _Rolling:
    """The values under one prefix that come from one topic."""

    run_id: str
    topic: str
    prefix: str
    windows: dict[str, deque[float]] = field(default_factory=dict)
    count: int = 0
    """All trajectories or games so far."""
    update: int = 0
    """The newest policy version among them."""
    flushed_at_ms: int | None = None
    last_id: str = ""
    """The latest event; the published metrics are of all up to this one."""
    last_ms: int = 0
    pending: int = 0
    """Events since the latest publication."""

    def is_due(self, update: int, now_ms: int) -> bool:
        """Return whether to publish before an event of this policy version and time is added."""
        if not self.pending or self.flushed_at_ms is None:
            return False
        return update > self.update or now_ms - self.flushed_at_ms >= FLUSH_EVERY_S * 1000

    def add(self, event: Event, update: int, samples: Iterator[Sample]) -> None:
        for name, value in samples:
            window = self.windows.get(name)
            if window is None:
                window = self.windows[name] = deque(maxlen=WINDOW)
            window.append(value)
        self.count += 1
        self.pending += 1
        self.update = max(self.update, update)
        self.last_id, self.last_ms = event.event_id, event.occurred_at_ms
        if self.flushed_at_ms is None:
            self.flushed_at_ms = event.occurred_at_ms

    def metrics(self) -> Metrics:
        """Return the means after the latest event, the same however often they are asked for."""
        counted = "trajectories" if self.topic == Trajectory.TOPIC else "games"
        values = {f"{self.prefix}/{counted}": float(self.count)}
        values |= {f"{self.prefix}/{name}": _mean(window) for name, window in sorted(self.windows.items())}
        return Metrics(
            event_id=event_id(self.run_id, "metrics", SOURCE, self.topic, self.prefix, self.last_id),
            run_id=self.run_id,
            occurred_at_ms=self.last_ms,
            source=SOURCE,
            values=values,
            update=self.update,
        )

    def state(self) -> dict[str, Any]:
        saved = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "run_id"}
        return saved | {"windows": {name: list(window) for name, window in sorted(self.windows.items())}}


class MetricsProcessor:
    """Folds the events of one run into ``metrics`` events with source ``tracker``.

    An event seen before changes nothing.
    """

    name: ClassVar[str] = "metrics-processor"
    inputs: ClassVar[tuple[str, ...]] = (Trajectory.TOPIC, GameOutcome.TOPIC, LearnerUpdate.TOPIC)

    def __init__(self, run_id: str) -> None:
        """Start with nothing seen."""
        self.run_id = run_id
        self._rolling: dict[tuple[str, str], _Rolling] = {}
        self._seen: dict[str, IndexSet] = {}
        self._updates: dict[str, int] = {}
        """The newest update of each trained model; the only one of a run has the name ``""``."""

    def handle(self, event: Event) -> Sequence[Metrics]:
        """Fold one event; return what is due for publication."""
        if event.run_id != self.run_id:
            return ()
        if isinstance(event, LearnerUpdate):
            return self._learner(event)
        if isinstance(event, Trajectory):
            version = event.policy_version
            if event.trained or event.split == "eval":
                model = trained_model(event.model_uid)
                return self._game(event, f"{event.split}/{event.seat}", version, _of_seat(event), model)
            return ()
        if isinstance(event, GameOutcome):
            versions = [seat.policy_version for seat in event.seats if seat.policy_version is not None]
            return self._game(event, event.split, max(versions, default=None), _of_game(event))
        return ()

    def rest(self) -> Sequence[Metrics]:
        """Return the means that later events would publish; they stay due."""
        return [one.metrics() for _, one in sorted(self._rolling.items()) if one.pending]

    def _game(
        self,
        event: Trajectory | GameOutcome,
        seen: str,
        version: int | None,
        samples: Iterator[Sample],
        model: str | None = None,
    ) -> Sequence[Metrics]:
        if event.split not in _PREFIXES or version is None or event.position is not None:
            return ()
        if not self._seen.setdefault(f"{event.TOPIC}/{seen}", IndexSet()).add(event.game_index):
            return ()
        prefix = f"{_PREFIXES[event.split]}-{event.env_id}"
        key = (event.TOPIC, prefix if model is None else f"{prefix}/{model}")
        rolling = self._rolling.get(key)
        if rolling is None:
            rolling = self._rolling[key] = _Rolling(self.run_id, *key)
        due: Sequence[Metrics] = ()
        if rolling.is_due(version, event.occurred_at_ms):
            due = [rolling.metrics()]
            rolling.pending, rolling.flushed_at_ms = 0, event.occurred_at_ms
        rolling.add(event, version, samples)
        return due

    def _learner(self, event: LearnerUpdate) -> Sequence[Metrics]:
        if event.update <= self._updates.get(event.model or "", 0):
            return ()
        self._updates[event.model or ""] = event.update
        prefix = "learner" if event.model is None else f"learner/{event.model}"
        numbers = {**event.metrics, "loss": event.loss, "duration_s": event.duration_ms / 1000}
        return [
            Metrics(
                event_id=event_id(self.run_id, "metrics", SOURCE, event.TOPIC, event.event_id),
                run_id=self.run_id,
                occurred_at_ms=event.occurred_at_ms,
                source=SOURCE,
                values={f"{prefix}/{name}": value for name, value in numbers.items() if math.isfinite(value)},
                update=event.update,
            )
        ]

    def state(self) -> dict[str, Any]:
        """Return everything the fold depends on, as JSON values."""
        return {
            "rolling": [one.state() for _, one in sorted(self._rolling.items())],
            "seen": {key: [list(span) for span in seen.ranges()] for key, seen in sorted(self._seen.items())},
            "update": self._updates.get("", 0),
            "updates": {model: update for model, update in sorted(self._updates.items()) if model},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` returned, also after a trip through JSON."""
        self._rolling = {}
        for saved in state["rolling"]:
            windows = {name: deque(values, maxlen=WINDOW) for name, values in saved["windows"].items()}
            one = _Rolling(self.run_id, **{**saved, "windows": windows})
            self._rolling[one.topic, one.prefix] = one
        self._seen = {key: IndexSet((a, b) for a, b in spans) for key, spans in state["seen"].items()}
        self._updates = {"": state["update"], **state.get("updates", {})}


def _mean(window: deque[float]) -> float:
    return math.fsum(value / len(window) for value in window)  # divided first: their sum may be no number


def _of_seat(event: Trajectory) -> Iterator[Sample]:
    """Yield what one seat's view of a game tells: one value for the game, or one for each of its turns."""
    result = _result(event)
    yield "reward", event.reward
    yield f"reward/seat-{event.seat}", event.reward
    for name in ("win", "draw", "loss"):
        yield f"{name}-rate", float(result == name)
    yield "invalid-move-rate", float(event.invalid_move)
    yield "turns", float(len(event.turns))
    if event.split == "eval":
        opponent = "+".join(sorted(set(event.opponents)))
        if opponent:
            yield f"reward/{opponent}", event.reward
            yield f"win-rate/{opponent}", float(result == "win")
    for turn in event.turns:
        for name, good in turn.format_feedback.items():
            yield "format-success" if name == _FORMAT else f"format/{name}", float(good)
        yield "legal-rate", float(turn.valid)
        yield "cut-rate", float(turn.finish_reason == "length")
        yield "response-tokens", float(packed_length(turn.completion_token_ids))
        yield "response-length", float(len(turn.completion))
        yield "observation-length", float(len(turn.observation))


def _result(event: Trajectory) -> str:
    """Return ``win``, ``draw`` or ``loss``, as the archive's table ``seats`` has it."""
    if len(event.rewards) <= 1:
        return "win" if event.reward > 0 else "loss" if event.reward < 0 else "draw"
    best = max(event.rewards.values())
    if min(event.rewards.values()) == best:
        return "draw"
    return "win" if event.reward == best else "loss"


def _of_game(event: GameOutcome) -> Iterator[Sample]:
    yield "game-length", float(event.num_turns)
    yield "game-seconds", event.duration_ms / 1000
    yield "truncated-rate", float(event.reason == "truncated")
    endpoints = {seat.seat: seat.model_uid for seat in event.seats if seat.kind == "openai"}
    for seat, name in endpoints.items():
        yield f"no-answers/{name}", float(event.no_answers.get(seat, 0))
    for action, reason in zip(event.actions, event.finish_reasons, strict=False):
        if action.seat in endpoints:
            yield f"cut-rate/{endpoints[action.seat]}", float(reason == "length")
