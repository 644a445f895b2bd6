"""Play one game and return its events.

The environment, the players' seeds and the ids are functions of the ``game-started`` event. The players'
answers and the time they take are recorded, so that the seed and the recorded actions replay the game.

A branch begins from a position of another game. That game's seed and moves make it again; its own seed is
that of the players' decisions from there on.

Rules for the result:

- The environment's rewards count if it finished the game within ``max_turns`` moves. Otherwise the reason is
  ``truncated`` and every seat's reward is 0: an unfinished game says nothing about who was better.
- ``invalid-move``: the last move was invalid and used up that seat's allowance. ``draw``: all seats got the
  same reward and it is not positive. ``win``: anything else, also a puzzle solved or a cooperative game won.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from unstable_stream.errors import GameError
from unstable_stream.events import (
    Action,
    GameOutcome,
    GameStarted,
    Seat,
    SeatResult,
    Trajectory,
    Turn,
    are_partners,
    event_id,
    pack_floats,
    pack_tokens,
    storable_text,
    trajectory_id,
    unpack_floats,
)
from unstable_stream.events.seeds import derive_seed
from unstable_stream.games.environments import Environment, EnvironmentResult, StepResult
from unstable_stream.games.players import Move, Player, SampledTokens, TurnContext


@dataclass(frozen=True, slots=True)
class PlayedGame:
    """The events that one game adds to the log, in one transaction."""

    trajectories: list[Trajectory]
    """One per seat that a language model with recorded tokens played, by seat."""
    outcome: GameOutcome


def turn_seed(game_seed: int, seat: int, turn_index: int) -> int:
    """Return the seed of a seat's random decisions in its ``turn_index``-th turn."""
    return derive_seed(game_seed, "turn", seat, turn_index)


async def play_game(
    started: GameStarted,
    players: Mapping[int, Player],
    *,
    max_turns: int,
    now_ms: Callable[[], int],
    invalid_moves_allowed: int = 0,
    watched: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> PlayedGame:
    """Play the game that was decided on to its end, or for ``max_turns`` moves of all seats together.

    ``now_ms`` is the clock (Unix time in milliseconds), read before and after every decision.
    ``invalid_moves_allowed`` is per seat and in a row; 0: the first one loses. ``watched`` is entered around
    every call that begins the environment's game, or makes a move in it or tries one on a copy.

    Raises:
        EnvironmentUnavailableError: the environment cannot run on this machine.
        GameError: no player for a seat, the position cannot be made again, or the environment failed; names
            game, environment and turn.
    """
    missing = [seat.seat for seat in started.seats if seat.seat not in players]
    if missing:
        raise GameError(f"game {started.game_id}: no player for seat(s) {missing} of {started.env_id}")
    environment = Environment(
        started.env_id, invalid_moves_allowed=invalid_moves_allowed, label=f"game {started.game_id}"
    )
    begin_ms = now_ms()

    def accepts(action: str) -> bool:
        with watched():
            return environment.accepts(action)

    with watched():
        environment.reset(len(started.seats), started.position.seed if started.position else started.seed)
    made = started.moves
    log = GameLog(len(started.seats))
    while not environment.done and environment.turn < max_turns:
        seen = environment.observe()
        turn = TurnContext(
            env_id=started.env_id,
            seat=seen.seat,
            num_players=len(started.seats),
            turn_index=log.turns[seen.seat],
            game_turn=environment.turn,
            seed=turn_seed(started.seed, seen.seat, log.turns[seen.seat]),
            observation=seen.text,
            accepts=accepts,
            plain=seen.plain,
        )
        asked_ms = now_ms()
        if environment.turn < len(made):
            move, again = _made(made[environment.turn], started, turn), True
        else:
            # Before the environment gets it: what is played is what is recorded.
            move, again = _storable(await players[seen.seat].move(turn), started, turn), False
        latency_ms = float(now_ms() - asked_ms)
        with watched():
            result = environment.step(move.action)
        log.add(turn, move, result, latency_ms, again)
    if environment.turn < len(made):
        raise GameError(
            f"game {started.game_id}: over after {environment.turn} of {len(made)} moves to its position"
        )
    end_ms = now_ms()
    return game_events(started, _judge(environment, log.actions), log, end_ms, float(end_ms - begin_ms))


def _made(action: Action, started: GameStarted, turn: TurnContext) -> Move:
    """Return a move to a position again."""
    if action.seat != turn.seat:
        raise GameError(
            f"game {started.game_id}: {started.env_id}: made again, it is the turn of seat {turn.seat} at "
            f"move {turn.game_turn}, and was that of {action.seat}: the environment does not follow its seed"
        )
    return Move(action.action)


def _storable(move: Move, started: GameStarted, turn: TurnContext) -> Move:
    if not isinstance(move, Move) or not isinstance(move.action, str):
        player = next(seat.model_uid for seat in started.seats if seat.seat == turn.seat)
        raise GameError(
            f"game {started.game_id}: {started.env_id}: {player} in seat {turn.seat} answered {move!r:.200} "
            f"at turn {turn.game_turn}; expected a Move with the action as text"
        )
    return replace(
        move,
        action=storable_text(move.action),
        format_feedback={storable_text(str(name)): bool(said) for name, said in move.format_feedback.items()},
        finish_reason=None if move.finish_reason is None else storable_text(str(move.finish_reason)),
    )


class GameLog:
    """The actions and turns of one game so far."""

    def __init__(self, num_players: int) -> None:
        self.actions: list[Action] = []
        self.made_again = 0
        """Actions that led to the position where the game begins: nobody here decided on them."""
        self.finish_reasons: list[str | None] = []
        """One per action."""
        self.no_answers: dict[int, int] = {}
        self.turns = [0] * num_players
        """Moves made by each seat."""
        self.sampled: list[list[Turn]] = [[] for _ in range(num_players)]
        self.settings: list[SampledTokens | None] = [None] * num_players
        """The sampling settings of each seat's first recorded turn."""

    def add(
        self, turn: TurnContext, move: Move, result: StepResult, latency_ms: float, again: bool = False
    ) -> None:
        """Take in a move; ``again``: it was made again to a position."""
        self.actions.append(Action(turn.seat, move.action, result.valid))
        self.finish_reasons.append(move.finish_reason)
        if again:
            self.made_again += 1
            return
        if move.no_answers:
            self.no_answers[turn.seat] = self.no_answers.get(turn.seat, 0) + move.no_answers
        self.turns[turn.seat] += 1
        sampled = move.sampled
        if sampled is None:
            return
        self.settings[turn.seat] = self.settings[turn.seat] or sampled
        self.sampled[turn.seat].append(
            Turn(
                turn_index=len(self.sampled[turn.seat]),
                game_turn=turn.game_turn,
                observation=turn.observation,
                prompt=sampled.prompt,
                prompt_token_ids=pack_tokens(sampled.prompt_token_ids),
                completion=sampled.completion,
                completion_token_ids=pack_tokens(sampled.completion_token_ids),
                logprobs=pack_floats(sampled.logprobs),
                finish_reason=sampled.finish_reason,
                action=move.action,
                valid=result.valid,
                format_feedback=move.format_feedback,
                step_info=result.info,
                policy_version=sampled.policy_version,
                latency_ms=latency_ms,
            )
        )


@dataclass(frozen=True, slots=True)
class GameEnd:
    """The result of a game by this module's rules."""

    reason: str
    text: str
    rewards: dict[int, float]
    invalid_seat: int | None
    roles: dict[int, str]


def _judge(environment: Environment, actions: Sequence[Action]) -> GameEnd:
    num_players = environment.num_players
    result: EnvironmentResult = environment.close()
    if result.rewards is None:
        text = result.reason or f"not finished after {environment.turn} moves"
        return GameEnd("truncated", text, dict.fromkeys(range(num_players), 0.0), None, result.roles)
    last = actions[-1]
    if not last.valid and last.seat in result.invalid_seats:
        return GameEnd("invalid-move", result.reason, result.rewards, last.seat, result.roles)
    rewards = set(result.rewards.values())
    drawn = len(rewards) == 1 and max(rewards) <= 0
    return GameEnd("draw" if drawn else "win", result.reason, result.rewards, None, result.roles)


def game_events(
    started: GameStarted, verdict: GameEnd, log: GameLog, end_ms: int, duration_ms: float
) -> PlayedGame:
    """Return what is recorded of a game that is over; the times are in milliseconds."""
    # A trained seat that was never asked has no trajectory: naming it would have consumers wait for one.
    trained = tuple(seat.seat for seat in started.seats if seat.trained and log.sampled[seat.seat])
    trajectories = [
        _trajectory(started, seat, verdict, log, trained, end_ms)
        for seat in sorted(started.seats, key=lambda seat: seat.seat)
        if log.sampled[seat.seat]
    ]
    outcome = GameOutcome(
        event_id=event_id(started.run_id, "game-outcome", started.game_id),
        run_id=started.run_id,
        occurred_at_ms=end_ms,
        game_id=started.game_id,
        game_index=started.game_index,
        split=started.split,
        env_id=started.env_id,
        seed=started.seed,
        seats=tuple(
            _seat_result(seat, verdict, log) for seat in sorted(started.seats, key=lambda seat: seat.seat)
        ),
        reason=verdict.reason,
        reason_text=verdict.text,
        invalid_seat=verdict.invalid_seat,
        actions=tuple(log.actions),
        num_turns=len(log.actions),
        duration_ms=duration_ms,
        evaluated_uid=started.evaluated_uid,
        position=started.position,
        least_likely_turn=_least_likely(log, trained),
        unparsed=_unparsed(log),
        finish_reasons=tuple(log.finish_reasons) if any(log.finish_reasons) else (),
        no_answers=log.no_answers,
    )
    return PlayedGame(trajectories, outcome)


def _trajectory(
    started: GameStarted, seat: Seat, verdict: GameEnd, log: GameLog, trained: tuple[int, ...], end_ms: int
) -> Trajectory:
    settings = log.settings[seat.seat]
    assert settings is not None
    return Trajectory(
        event_id=trajectory_id(started.game_id, seat.seat),
        run_id=started.run_id,
        occurred_at_ms=end_ms,
        game_id=started.game_id,
        game_index=started.game_index,
        split=started.split,
        env_id=started.env_id,
        seed=started.seed,
        seat=seat.seat,
        model_uid=seat.model_uid,
        policy_version=seat.policy_version,
        role=verdict.roles.get(seat.seat),
        roles=verdict.roles,
        template=seat.template,
        trained=seat.trained,
        trained_seats=trained,
        opponents=tuple(other.model_uid for other in started.seats if not are_partners(other, seat)),
        turns=tuple(log.sampled[seat.seat]),
        rewards=verdict.rewards,
        reward=verdict.rewards[seat.seat],
        reason=verdict.reason,
        invalid_move=verdict.invalid_seat == seat.seat,
        opponent_invalid=any(
            other.seat == verdict.invalid_seat for other in started.seats if not are_partners(other, seat)
        ),
        temperature=settings.temperature,
        top_p=settings.top_p,
        position=started.position,
    )


def _seat_result(seat: Seat, verdict: GameEnd, log: GameLog) -> SeatResult:
    reward = verdict.rewards[seat.seat]
    return SeatResult(
        seat=seat.seat,
        model_uid=seat.model_uid,
        kind=seat.kind,
        reward=reward,
        rank=sum(other > reward for other in verdict.rewards.values()),
        policy_version=seat.policy_version,
        parent_uid=seat.parent_uid,
        role=verdict.roles.get(seat.seat),
        trained=seat.trained,
        invalid_moves=sum(
            1 for action in log.actions[log.made_again :] if action.seat == seat.seat and not action.valid
        ),
        turns=log.turns[seat.seat],
        team=seat.team,
    )


def _least_likely(log: GameLog, trained: Sequence[int]) -> int | None:
    turns = [turn for seat in trained for turn in log.sampled[seat]]
    return min(turns, key=lambda turn: math.fsum(unpack_floats(turn.logprobs))).game_turn if turns else None


def _unparsed(log: GameLog) -> dict[int, int]:
    found = [[turn.format_feedback.get("correct_answer_format") for turn in turns] for turns in log.sampled]
    return {seat: turns.count(False) for seat, turns in enumerate(found) if set(turns) - {None}}
