"""Play recorded games again from seed and actions, and compute what each record of them should be.

Only the results of sampling come from the log: the actions, and the seats of trained models. The environment
gives the rest: observations, valid moves, infos, rewards, ranks, roles, the reason.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from unstable_stream.errors import EnvironmentUnavailableError, GameError
from unstable_stream.events import (
    ON_ENGINE,
    GameOutcome,
    GameStarted,
    Seat,
    Trajectory,
    decode_event,
    encode_event,
)
from unstable_stream.extensions import allowed_patterns, confine
from unstable_stream.games.play import PlayedGame, play_game
from unstable_stream.games.players import Move, SampledTokens, TurnContext

TagT = TypeVar("TagT")

_BATCH: Final = 32
_UNSAMPLED: Final = SampledTokens("", (), "", (), (), "")
_TRAJECTORY_FIELDS: Final = (
    "game_id",
    "game_index",
    "split",
    "env_id",
    "seed",
    "seat",
    "model_uid",
    "policy_version",
    "role",
    "trained",
    "trained_seats",
    "opponents",
    "rewards",
    "reward",
    "reason",
    "invalid_move",
    "opponent_invalid",
)
_TURN_FIELDS: Final = ("turn_index", "game_turn", "observation", "action", "valid", "step_info")
_GAME_FIELDS: Final = ("game_id", "game_index", "split", "env_id", "seed", "evaluated_uid")
_SEAT_FIELDS: Final = ("seat", "model_uid", "kind", "policy_version", "parent_uid", "trained", "team")


class ReplayRules(NamedTuple):
    """The settings with which a run's games were played."""

    max_turns: int
    invalid_moves_allowed: int


class PlayedAgain(NamedTuple):
    """The result of playing a game again."""

    outcome: bytes | None
    """The expected outcome, encoded; ``None`` if it is as recorded, or there is none."""
    views: Sequence[tuple[str, bytes]]
    """Id and view, as JSON, of each expected trajectory."""
    problem: str | None = None
    """The reason why the game could not be played again to its end."""


def trajectory_view(event: Trajectory) -> bytes:
    """Return, as JSON, the part of a trajectory from environment and schedule: all but the sampling."""
    return msgspec.json.encode(
        {
            **{name: getattr(event, name) for name in _TRAJECTORY_FIELDS},
            "turns": [{name: getattr(turn, name) for name in _TURN_FIELDS} for turn in event.turns],
        }
    )


def started_view(event: GameStarted | GameOutcome) -> bytes:
    """Return, as JSON, the fields that a game's start and its outcome share."""
    return msgspec.json.encode(
        {
            **{name: getattr(event, name) for name in _GAME_FIELDS},
            "seats": [{name: getattr(seat, name) for name in _SEAT_FIELDS} for seat in event.seats],
        }
    )


def replay(outcome: GameOutcome, rules: ReplayRules) -> PlayedAgain:
    """Play a recorded game again; only its actions and their seats come from the record."""
    started = GameStarted(
        event_id="",
        run_id=outcome.run_id,
        occurred_at_ms=outcome.occurred_at_ms,
        game_id=outcome.game_id,
        game_index=outcome.game_index,
        split=outcome.split,
        env_id=outcome.env_id,
        seed=outcome.seed,
        seats=tuple(Seat(**{name: getattr(seat, name) for name in _SEAT_FIELDS}) for seat in outcome.seats),
        evaluated_uid=outcome.evaluated_uid,
    )
    players = {seat.seat: _RecordedPlayer(outcome, seat.seat) for seat in outcome.seats}
    try:
        played = _finish(
            play_game(
                started,
                players,
                max_turns=rules.max_turns,
                now_ms=lambda: outcome.occurred_at_ms,
                invalid_moves_allowed=rules.invalid_moves_allowed,
            )
        )
    except EnvironmentUnavailableError as error:
        raise EnvironmentUnavailableError(f"{error} Or leave the games out: --no-games") from error
    except GameError as error:
        return PlayedAgain(None, (), str(error))
    # The time, and what is known of completions, come from the record: the sampling is not made again.
    again = msgspec.structs.replace(
        played.outcome,
        duration_ms=outcome.duration_ms,
        unparsed=outcome.unparsed,
        finish_reasons=outcome.finish_reasons,
        no_answers=outcome.no_answers,
    )
    body = encode_event(again)
    return PlayedAgain(
        None if body == encode_event(outcome) else body,
        [(event.event_id, trajectory_view(event)) for event in played.trajectories],
    )


class _RecordedPlayer:
    """Plays the recorded moves of a seat."""

    def __init__(self, outcome: GameOutcome, seat: int) -> None:
        self._actions = [action.action for action in outcome.actions if action.seat == seat]
        sampled = next(each.kind for each in outcome.seats if each.seat == seat) in ON_ENGINE
        self._sampled = _UNSAMPLED if sampled else None

    async def move(self, turn: TurnContext) -> Move:
        if turn.turn_index >= len(self._actions):
            raise GameError(
                f"played again, seat {turn.seat} is asked for its move {turn.turn_index}, move "
                f"{turn.game_turn} of the game, but it made only {len(self._actions)}"
            )
        return Move(self._actions[turn.turn_index], sampled=self._sampled)


def _finish(playing: Coroutine[Any, Any, PlayedGame]) -> PlayedGame:
    """Run a game whose players never wait; this works also inside a running event loop."""
    try:
        playing.send(None)
    except StopIteration as done:
        played: PlayedGame = done.value
        return played
    raise AssertionError("recorded players do not wait")


def processes(jobs: int) -> ProcessPoolExecutor:
    """Return processes with this process's permissions: a game's environment may be its run's own code."""
    allowed = allowed_patterns()
    # Spawned, not forked: this process has threads.
    spawn = get_context("spawn")
    if allowed is None:
        return ProcessPoolExecutor(jobs, spawn)
    return ProcessPoolExecutor(jobs, spawn, initializer=confine, initargs=(allowed,))


class Replayer(Generic[TagT]):
    """Plays games again, in this process or in several others, and returns the results in order.

    ``TagT`` is the type of a tag that the caller gets back with a game's result.
    """

    def __init__(self, rules: ReplayRules, jobs: int) -> None:
        """Start ``jobs`` processes; 1 means this process."""
        self._rules = rules
        self._most_waiting = 2 * jobs
        self._pool = processes(jobs) if jobs > 1 else None
        self._batch: list[tuple[TagT, GameOutcome]] = []
        self._waiting: deque[tuple[list[tuple[TagT, GameOutcome]], Future[list[PlayedAgain]]]] = deque()

    def close(self) -> None:
        """Stop the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    async def add(self, tag: TagT, outcome: GameOutcome) -> list[tuple[TagT, GameOutcome, PlayedAgain]]:
        """Add a game; return the results that are ready."""
        if self._pool is None:
            await asyncio.sleep(0)  # a game may take seconds: let the reader of the log run
            return [(tag, outcome, replay(outcome, self._rules))]
        self._batch.append((tag, outcome))
        if len(self._batch) >= _BATCH:
            self._submit(self._pool)
        return await self._results(self._most_waiting)

    async def rest(self) -> list[tuple[TagT, GameOutcome, PlayedAgain]]:
        """Wait for the games that are still being played."""
        if self._pool is not None and self._batch:
            self._submit(self._pool)
        return await self._results(0)

    def _submit(self, pool: ProcessPoolExecutor) -> None:
        bodies = [encode_event(outcome) for _, outcome in self._batch]
        self._waiting.append((self._batch, pool.submit(_replay_encoded, bodies, self._rules)))
        self._batch = []

    async def _results(self, may_wait: int) -> list[tuple[TagT, GameOutcome, PlayedAgain]]:
        done: list[tuple[TagT, GameOutcome, PlayedAgain]] = []
        while len(self._waiting) > may_wait:
            games, future = self._waiting.popleft()
            replays = await asyncio.wrap_future(future)
            done += [(tag, outcome, each) for (tag, outcome), each in zip(games, replays, strict=True)]
        return done


def _replay_encoded(bodies: Sequence[bytes], rules: ReplayRules) -> list[PlayedAgain]:
    replays = []
    for body in bodies:
        outcome = decode_event(body)
        assert isinstance(outcome, GameOutcome)
        replays.append(replay(outcome, rules))
    return replays
