"""The spans of a run, a fold of its events: game > turn > generation and reward, and the learner's updates.

A game is a trace of its own, so that a trace stays as small as a game however long the run is. All updates
of a run are one more trace, and each links to the games of its batch. Trace and span are named by what
they show; whoever sends them hashes these names to ids, so the same run has the same ids each time. Names
of attributes are those of OpenTelemetry's conventions for generative models, ``gen_ai.*``. What these have no
word for is ``rl.`` and the name of our event's field.

The log has no time of a single turn. Turns follow each other from the beginning of their game, each as long
as its answer took; what the environment took in between is after the last.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from unstable_stream.events import (
    ON_ENGINE,
    Event,
    GameOutcome,
    LearnerUpdate,
    RunFinished,
    RunResumed,
    RunStarted,
    Step,
    StepsDropped,
    Trajectory,
    Turn,
    event_id,
)
from unstable_stream.events.arrays import packed_length
from unstable_stream.services.streams.trackers import Piece

Value: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[float]
Attributes: TypeAlias = Mapping[str, Value]

_ENDPOINT: Final = "openai"


@dataclass(frozen=True, slots=True)
class TraceLink:
    """A span of another trace that led to this one."""

    trace: str
    key: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """A span, before its names are hashed."""

    trace: str
    """The id of the game or the run."""
    key: str
    """The natural key; no two spans of any run have the same."""
    parent: str | None
    """The key of the span that it is part of; ``None``: it is the root."""
    name: str
    start_ms: float
    end_ms: float
    attributes: Attributes
    links: tuple[TraceLink, ...] = ()
    asks_model: bool = False
    """Whether a model on another machine or in another process was asked."""
    error: str = ""
    """The reason for a failure; empty: there was none."""


@dataclass(slots=True)
class _GameParts:
    """The parts of a game that have been read."""

    outcome: GameOutcome | None = None
    trajectories: dict[int, Trajectory] = field(default_factory=dict)

    def complete(self) -> bool:
        if self.outcome is None:
            return False
        expected = {seat.seat for seat in self.outcome.seats if seat.kind in ON_ENGINE and seat.turns}
        return expected <= self.trajectories.keys()


class SpanFold:
    """Events of one run to its spans, in pieces that are sent once."""

    topics: Sequence[str] = (LearnerUpdate.TOPIC, Step.TOPIC, GameOutcome.TOPIC, Trajectory.TOPIC)

    def __init__(self, *, content: bool = False) -> None:
        """``content``: prompts and completions are attributes too."""
        self._content = content
        self._engine = ""
        self._games: dict[str, _GameParts] = {}
        self._game_of: dict[str, str] = {}
        """By step that is not trained on yet, its game."""
        self._begun: RunStarted | RunResumed | None = None
        """The beginning of the present part of the run; ``None``: it has ended."""
        self._heard_ms = 0
        self._over = False

    def handle(self, event: Event) -> list[Piece]:
        """Return the spans that are complete with this event."""
        spans = self._spans(event)
        self._heard_ms = max(self._heard_ms, event.occurred_at_ms)
        if isinstance(event, Trajectory | GameOutcome):
            return [] if not spans else [Piece(event_id(event.game_id, "spans"), spans)]
        return [Piece(event.event_id, spans)] if spans else []

    def rest(self) -> list[Piece]:
        """Return the games whose trajectories never came, if the run is over."""
        games = {name: game for name, game in self._games.items() if self._over and game.outcome}
        return [Piece(event_id(name, "spans"), self._game_spans(game)) for name, game in games.items()]

    def _spans(self, event: Event) -> list[TraceSpan]:
        if isinstance(event, Trajectory | GameOutcome):
            game = self._games.setdefault(event.game_id, _GameParts())
            if isinstance(event, GameOutcome):
                game.outcome = event
            else:
                game.trajectories[event.seat] = event
            return self._game_spans(self._games.pop(event.game_id)) if game.complete() else []
        if isinstance(event, Step):
            self._game_of[event.step_id] = event.game_id
            return [_reward_span(event)]
        if isinstance(event, StepsDropped):
            for dropped in event.dropped:
                self._game_of.pop(dropped.step_id, None)
        if isinstance(event, LearnerUpdate):
            return [self._update_span(event)]
        if isinstance(event, RunStarted | RunResumed | RunFinished):
            return self._run_spans(event)
        return []

    # -- the run and its updates ----------------------------------------------------------------------

    def _run_spans(self, event: RunStarted | RunResumed | RunFinished) -> list[TraceSpan]:
        """Return the span of the part of the run that is over: it was stopped, or killed and resumed."""
        begun = self._begun
        self._over = isinstance(event, RunFinished)
        self._begun = None if isinstance(event, RunFinished) else event
        if not isinstance(event, RunFinished):
            self._engine = str(event.config.get("engine", {}).get("type", "")) or "unstable_stream"
        if begun is None or isinstance(event, RunStarted):
            return []
        killed = "killed: nothing was recorded of its end"
        outcome, reason, end_ms = "failed", killed, max(self._heard_ms, begun.occurred_at_ms)
        if isinstance(event, RunFinished):
            outcome, reason, end_ms = event.outcome, event.reason, event.occurred_at_ms
        resumption = begun.resumption if isinstance(begun, RunResumed) else 0
        attributes = {
            **_fields(begun, "run_id", "package_version"),
            "rl.resumption": resumption,
            "rl.outcome": outcome,
        }
        key, name = _part_key(event.run_id, resumption), f"run {event.run_id}"
        error = (reason or outcome) if outcome == "failed" else ""
        start_ms = begun.occurred_at_ms
        return [TraceSpan(event.run_id, key, None, name, start_ms, end_ms, attributes, error=error)]

    def _update_span(self, event: LearnerUpdate) -> TraceSpan:
        games: dict[str, int] = {}
        for step in event.step_ids:
            if game := self._game_of.pop(step, None):
                games[game] = games.get(game, 0) + 1
        for dropped in event.dropped:
            self._game_of.pop(dropped.step_id, None)
        resumption = self._begun.resumption if isinstance(self._begun, RunResumed) else 0
        attributes = {
            **_fields(event, "run_id", "update", "loss", "model_uid", "model"),
            **{f"rl.metrics.{name}": value for name, value in event.metrics.items()},
            "rl.steps_trained": len(event.step_ids),
            "rl.steps_dropped": len(event.dropped),
        }
        links = tuple(TraceLink(game, game, {"rl.steps_trained": steps}) for game, steps in games.items())
        part, end_ms = _part_key(event.run_id, resumption), event.occurred_at_ms
        start_ms, name = end_ms - event.duration_ms, f"update {event.update}"
        return TraceSpan(event.run_id, event.event_id, part, name, start_ms, end_ms, attributes, links)

    # -- games ----------------------------------------------------------------------------------------

    def _game_spans(self, game: _GameParts) -> list[TraceSpan]:
        outcome = game.outcome
        assert outcome is not None
        start_ms = outcome.occurred_at_ms - outcome.duration_ms
        made_again = outcome.position.moves if outcome.position else 0
        sampled = {
            turn.game_turn: (trajectory, turn)
            for trajectory in game.trajectories.values()
            for turn in trajectory.turns
        }
        spans = [_game_span(outcome, start_ms)]
        at_ms, trace = start_ms, outcome.game_id
        for number, action in enumerate(outcome.actions[made_again:], made_again):
            asked, key, end_ms = sampled.get(number), f"{trace}/turn/{number}", at_ms
            if asked is not None:
                key = _turn_key(asked[0].trajectory_id, asked[1].turn_index)
                end_ms += asked[1].latency_ms
            move = {**_fields(action, "seat", "action", "valid"), "rl.game_turn": number}
            spans.append(TraceSpan(trace, key, trace, f"turn {number}", at_ms, end_ms, move))
            if asked is not None:
                spans.append(self._generation_span(outcome, *asked, key, at_ms))
            at_ms = end_ms
        return spans

    def _generation_span(
        self, outcome: GameOutcome, trajectory: Trajectory, turn: Turn, parent: str, start_ms: float
    ) -> TraceSpan:
        kind = next(seat.kind for seat in outcome.seats if seat.seat == trajectory.seat)
        attributes: dict[str, Value] = {
            **_fields(turn, "policy_version"),
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": _ENDPOINT if kind == _ENDPOINT else self._engine,
            "gen_ai.conversation.id": outcome.game_id,
            "gen_ai.request.model": trajectory.model_uid,
            "gen_ai.request.temperature": trajectory.temperature,
            "gen_ai.request.top_p": trajectory.top_p,
            "gen_ai.response.model": trajectory.model_uid,
            "gen_ai.response.finish_reasons": [turn.finish_reason],
            "gen_ai.usage.input_tokens": packed_length(turn.prompt_token_ids),
            "gen_ai.usage.output_tokens": packed_length(turn.completion_token_ids),
        }
        if self._content:
            answer = {"role": "assistant", **_parts(turn.completion), "finish_reason": turn.finish_reason}
            attributes["gen_ai.input.messages"] = json.dumps([{"role": "user", **_parts(turn.prompt)}])
            attributes["gen_ai.output.messages"] = json.dumps([answer])
        end_ms, name = start_ms + turn.latency_ms, f"text_completion {trajectory.model_uid}"
        key = f"{parent}/generation"
        return TraceSpan(outcome.game_id, key, parent, name, start_ms, end_ms, attributes, asks_model=True)


def _fields(source: msgspec.Struct, *names: str) -> dict[str, Value]:
    """Return fields of an event that have a value, ``rl.`` before their names."""
    values = {name: getattr(source, name) for name in names}
    return {f"rl.{name}": value for name, value in values.items() if value is not None}


def _game_span(outcome: GameOutcome, start_ms: float) -> TraceSpan:
    names = ("run_id", "game_id", "game_index", "split", "env_id", "seed", "reason", "num_turns")
    attributes = {
        **_fields(outcome, *names),
        "rl.models": [seat.model_uid for seat in outcome.seats],
        "rl.rewards": [seat.reward for seat in outcome.seats],
    }
    trace, end_ms, name = outcome.game_id, outcome.occurred_at_ms, f"game {outcome.env_id}"
    return TraceSpan(trace, trace, None, name, start_ms, end_ms, attributes)


def _reward_span(step: Step) -> TraceSpan:
    parent, at_ms = _turn_key(step.trajectory_id, step.turn_index), step.occurred_at_ms
    attributes = _fields(step, "step_id", "raw_reward", "final_reward", "reward")
    return TraceSpan(step.game_id, step.step_id, parent, "reward", at_ms, at_ms, attributes)


def _turn_key(trajectory: str, turn_index: int) -> str:
    return f"{trajectory}/turn/{turn_index}"


def _part_key(run_id: str, resumption: int) -> str:
    return f"{run_id}/part/{resumption}"


def _parts(text: str) -> dict[str, list[dict[str, str]]]:
    return {"parts": [{"type": "text", "content": text}]}
