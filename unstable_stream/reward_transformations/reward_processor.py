"""Fold trajectories into steps.

It looks at trained trajectories of the ``train`` split of one run. Its state is the transformations'
state and the games it has seen; neither depends on anything but the trajectories, in order.

Trajectories have an order within one environment only: those of two environments may lie in two partitions,
and the number of partitions is a setting of the log. So each environment has transformations of its own, and
what one of them learns (a baseline, a mean) is learned from one environment. The steps are then the same for
any number of partitions.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final, NamedTuple, TypeVar

import msgspec

from unstable_stream.errors import EventError
from unstable_stream.events import (
    Event,
    GameOutcome,
    SeatResult,
    Step,
    StepTexts,
    Trajectory,
    are_partners,
    is_checkpoint_uid,
    packed_length,
    step_ids,
    trained_model,
    trajectory_id,
)
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.reward_transformations.final import ComposeFinalRewardTransforms, RewardVector
from unstable_stream.reward_transformations.step import ComposeStepRewardTransforms, TrajectoryView
from unstable_stream.reward_transformations.transform import JsonState, RewardTransform, UnsavableState

_TRAINED_SPLIT: Final = "train"

_T = TypeVar("_T", bound=RewardTransform)


class _Stacks(NamedTuple):
    """The transformations of one environment."""

    final: ComposeFinalRewardTransforms
    step: ComposeStepRewardTransforms
    unsavable: UnsavableState


@dataclass(slots=True)
class _OpenGame:
    """A game of which some, but not all trained seats have been seen."""

    seats_seen: set[int] = field(default_factory=set)
    final: Mapping[int, float] | None = None
    """The transformed vector; ``None`` until a seat that yields steps needed it."""


class RewardProcessor:
    """Turns each trained trajectory into steps with shaped rewards.

    The final transformations see each game once, as the full vector of all seats; the result is kept until
    every trained seat of the game has arrived. A trajectory seen before yields nothing. If a game was played
    twice, because its worker was thought dead, the first play counts, also if it asked no trained seat.

    With ``filter_opponent_invalid``, a seat whose game was ended by someone else's invalid move yields no
    steps: they are never produced, so there is nothing to account for as dropped; the trajectory stays in
    the log and is counted in :attr:`filtered`. Role baselines learn nothing from such a seat either: of a
    game that ended this way they see the offender only. An offender's own trajectory is always kept.
    """

    name: ClassVar[str] = "reward-processor"
    inputs: ClassVar[tuple[str, ...]] = (Trajectory.TOPIC,)

    def __init__(
        self,
        run_id: str,
        final: ComposeFinalRewardTransforms | Callable[[], ComposeFinalRewardTransforms] | None = None,
        step: ComposeStepRewardTransforms | Callable[[], ComposeStepRewardTransforms] | None = None,
        *,
        filter_opponent_invalid: bool = False,
        step_texts: bool = False,
    ) -> None:
        """Start with nothing seen.

        Args:
            run_id: the run.
            final: the final transformations, which hold state: a function that makes fresh ones, called for
                each environment, or fresh ones, which are copied for each; ``None``: no transformation.
            step: the step transformations, in the same way.
            filter_opponent_invalid: see above.
            step_texts: give each step what was shown and said.
        """
        self.run_id = run_id
        self.step_texts = step_texts
        self.filter_opponent_invalid = filter_opponent_invalid
        self.filtered = 0
        """Trajectories that yielded no steps because an opponent's invalid move ended the game."""
        self._make_final = _maker(final if final is not None else ComposeFinalRewardTransforms([]))
        self._make_step = _maker(step if step is not None else ComposeStepRewardTransforms([]))
        self._by_env: dict[str, _Stacks] = {}
        self._done = IndexSet()
        self._open: dict[int, _OpenGame] = {}

    def handle(self, event: Event) -> Sequence[Event]:
        """Fold one event.

        Raises:
            EventError: a trajectory that cannot be trained on; nothing has changed.
            ConfigError: a transformation returned something that is no reward.
        """
        if not isinstance(event, Trajectory) or event.run_id != self.run_id:
            return ()
        if event.split != _TRAINED_SPLIT or event.game_index in self._done:
            return ()
        if not event.trained:
            if not event.trained_seats and event.game_index not in self._open:
                # It ended before a trained seat was asked. Played a second time it may end otherwise.
                self._done.add(event.game_index)
            return ()
        trained = _trained_seats(event)
        versions = _policy_versions(event)
        game = self._open.get(event.game_index) or _OpenGame()
        if event.seat in game.seats_seen:
            return ()
        steps: Sequence[Step] = ()
        if self.filter_opponent_invalid and event.opponent_invalid:
            self.filtered += 1
        else:
            if game.final is None:
                learning = trained
                if self.filter_opponent_invalid and event.invalid_move:
                    learning = frozenset((event.seat,))
                if event.position is not None:
                    learning = frozenset()  # what follows from a position says little of whole games
                final = self._stacks(event.env_id).final
                game.final = final(
                    RewardVector(event.rewards, learning, event.roles, _met(event)), event.env_id
                )
            steps = self._shape(event, game.final[event.seat], versions)
        game.seats_seen.add(event.seat)
        if game.seats_seen >= trained:
            self._open.pop(event.game_index, None)
            self._done.add(event.game_index)
        else:
            self._open[event.game_index] = game
        return steps

    def _stacks(self, env_id: str) -> _Stacks:
        stacks = self._by_env.get(env_id)
        if stacks is None:
            final, step = self._make_final(), self._make_step()
            stacks = self._by_env[env_id] = _Stacks(final, step, UnsavableState(final, step))
        return stacks

    def _shape(self, event: Trajectory, final_reward: float, versions: list[int]) -> list[Step]:
        view = TrajectoryView(event)
        shape = self._stacks(event.env_id).step
        turns = event.turns
        num_turns = len(turns)
        # What all steps share is read once: a short game's steps cost little more than being made.
        run_id, occurred_at_ms, trajectory = event.run_id, event.occurred_at_ms, event.event_id
        game_id, game_index, env_id, seat = event.game_id, event.game_index, event.env_id, event.seat
        model_uid, temperature, raw_reward = event.model_uid, event.temperature, event.reward
        start = event.position
        step_texts = self.step_texts
        return [
            Step(
                event_id=event_id,
                run_id=run_id,
                occurred_at_ms=occurred_at_ms,
                trajectory_id=trajectory,
                game_id=game_id,
                game_index=game_index,
                env_id=env_id,
                seat=seat,
                turn_index=index,
                num_turns=num_turns,
                model_uid=model_uid,
                policy_version=version,
                prompt_token_ids=turn.prompt_token_ids,
                completion_token_ids=turn.completion_token_ids,
                logprobs=turn.logprobs,
                truncated=turn.finish_reason == "length",
                cut_off=turn.format_feedback.get("cut_off"),
                temperature=temperature,
                raw_reward=raw_reward,
                final_reward=final_reward,
                reward=shape(view, index, final_reward),
                branch=f"{start.game_id}:{start.turn}" if start and turn.game_turn == start.moves else None,
                texts=msgspec.convert(turn, StepTexts, from_attributes=True) if step_texts else None,
            )
            for index, (event_id, turn, version) in enumerate(
                zip(step_ids(trajectory, num_turns), turns, versions, strict=True)
            )
        ]

    def state(self) -> JsonState:
        """Return everything the fold depends on, as JSON values.

        Raises:
            ValueError: a custom transformation keeps a state and does not tell it.
        """
        for stacks in self._by_env.values():
            stacks.unsavable.check()
        return {
            "envs": {
                env_id: {"final": stacks.final.state(), "step": stacks.step.state()}
                for env_id, stacks in sorted(self._by_env.items())
            },
            "done": [list(span) for span in self._done.ranges()],
            "open": [
                {
                    "game_index": index,
                    "seats_seen": sorted(game.seats_seen),
                    "final": None if game.final is None else sorted(game.final.items()),
                }
                for index, game in sorted(self._open.items())
            ],
            "filtered": self.filtered,
        }

    def load_state(self, state: JsonState) -> None:
        """Go on from what :meth:`state` returned, also after a trip through JSON."""
        self._by_env = {}
        for env_id, learned in state["envs"].items():
            stacks = self._stacks(env_id)
            stacks.final.load_state(learned["final"])
            stacks.step.load_state(learned["step"])
        self._done = IndexSet((start, stop) for start, stop in state["done"])
        self._open = {
            game["game_index"]: _OpenGame(
                set(game["seats_seen"]), None if game["final"] is None else dict(game["final"])
            )
            for game in state["open"]
        }
        self.filtered = state["filtered"]


def _met(event: Trajectory) -> str:
    """Return the opponents of a seat, all checkpoints being one."""
    return ", ".join(sorted({"checkpoints" if is_checkpoint_uid(uid) else uid for uid in event.opponents}))


def _maker(given: _T | Callable[[], _T]) -> Callable[[], _T]:
    # A composition can be called too: with rewards.
    return partial(copy.deepcopy, given) if isinstance(given, RewardTransform) else given


def expected_steps_of(outcome: GameOutcome, *, filter_opponent_invalid: bool) -> dict[str | None, int]:
    """Return how many steps the reward processor makes of a game, by trained model; the only one of a run
    has no name.

    Back-pressure counts with it: it must agree with :class:`RewardProcessor`, or pending steps drift.
    """
    steps: dict[str | None, int] = {}
    for result in _shaped_seats(outcome, filter_opponent_invalid):
        model = trained_model(result.model_uid)
        steps[model] = steps.get(model, 0) + result.turns
    return steps


def expected_step_ids(
    outcome: GameOutcome, *, filter_opponent_invalid: bool, model: str | None = None
) -> dict[str, list[str]]:
    """Return the ids of the steps that the reward processor makes of a game for a trained model, by
    trajectory id; ``model`` is its name, ``None`` for the only one of a run.
    """
    views = {
        trajectory_id(outcome.game_id, result.seat): result.turns
        for result in _shaped_seats(outcome, filter_opponent_invalid)
        if trained_model(result.model_uid) == model
    }
    return {view: step_ids(view, turns) for view, turns in views.items() if turns}


def _shaped_seats(outcome: GameOutcome, filter_opponent_invalid: bool) -> list[SeatResult]:
    if outcome.split != _TRAINED_SPLIT:
        return []
    lost_by = [result for result in outcome.seats if result.seat == outcome.invalid_seat]
    filtering = filter_opponent_invalid and bool(lost_by)
    return [
        result
        for result in outcome.seats
        if result.trained and (not filtering or are_partners(result, lost_by[0]))
    ]


def _trained_seats(event: Trajectory) -> frozenset[int]:
    trained = frozenset(event.trained_seats) or frozenset((event.seat,))
    if event.seat not in trained or not trained <= event.rewards.keys():
        raise EventError(
            f"trajectory {event.event_id} of game {event.game_id}: seat {event.seat} is trained, but "
            f"trained_seats is {sorted(trained)} and rewards are of seats {sorted(event.rewards)}; expected "
            "it among the trained seats and a reward for each of them"
        )
    return trained


def _policy_versions(event: Trajectory) -> list[int]:
    """Return each turn's policy version; raises :class:`EventError` for turns that cannot be trained on."""
    versions = []
    for index, turn in enumerate(event.turns):
        version = turn.policy_version if turn.policy_version is not None else event.policy_version
        same_length = len(turn.completion_token_ids) == len(turn.logprobs)  # items of both take 4 bytes
        if version is None or turn.turn_index != index or not same_length:
            tokens, logprobs = packed_length(turn.completion_token_ids), packed_length(turn.logprobs)
            raise EventError(
                f"trajectory {event.event_id} of game {event.game_id}, turn {index}: turn_index "
                f"{turn.turn_index}, policy version {version}, {tokens} completion tokens and {logprobs} "
                "log-probabilities; expected consecutive turns, a version and equal lengths"
            )
        versions.append(version)
    return versions
