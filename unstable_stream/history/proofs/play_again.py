"""Play recorded games again from seed and actions, and compare games, trajectories and starts with them.

Only the results of sampling come from the log: the actions, and the seats of trained models. The environment
gives the rest: observations, valid moves, infos, rewards, ranks, roles, the reason.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import aclosing
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from unstable_stream.errors import EnvironmentUnavailableError, GameError
from unstable_stream.events import (
    IMPORTED,
    ON_ENGINE,
    Event,
    GameOutcome,
    GameStarted,
    Seat,
    Trajectory,
    encode_event,
    event_id,
    trajectory_id,
)
from unstable_stream.events.id_sets import IndexSet, body_digest
from unstable_stream.extensions import allowed_patterns, confine
from unstable_stream.games.play import PlayedGame, play_game
from unstable_stream.games.players import Move, SampledTokens, TurnContext
from unstable_stream.history.proofs.expected_records import DerivedCheck, Expected
from unstable_stream.history.proofs.ledger import Evidence, RecordIndex
from unstable_stream.history.proofs.reports import Check
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.records import event_from_record
from unstable_stream.runs.sections import CollectorConfig

_MOST_WAITING: Final = 64
"""The most games that wait for one process, or for the caller to look at them."""
_UNSAMPLED: Final = SampledTokens("", (), "", (), (), "")
_GAME_FIELDS: Final = ("game_id", "game_index", "split", "env_id", "seed", "position")
_TRAJECTORY_FIELDS: Final = (
    *("seat", "model_uid", "policy_version", "role", "trained", "trained_seats", "opponents"),
    *("rewards", "reward", "reason", "invalid_move", "opponent_invalid"),
)
_TURN_FIELDS: Final = ("turn_index", "game_turn", "observation", "action", "valid", "step_info")
_SEAT_FIELDS: Final = ("seat", "model_uid", "kind", "policy_version", "parent_uid", "trained", "team")


class PlayedAgain(NamedTuple):
    """The result of playing a game again."""

    outcome: bytes | None
    """The expected outcome, encoded; ``None`` if it is as recorded, or there is none."""
    views: Sequence[tuple[str, bytes]]
    """Id and view, as JSON, of each expected trajectory."""
    problem: str | None = None
    """The reason why the game could not be played again to its end."""


_Result: TypeAlias = tuple[StoredRecord, GameOutcome, PlayedAgain]


def _part(of: msgspec.Struct, names: Sequence[str]) -> dict[str, Any]:
    """``Any``: values of fields."""
    return {name: getattr(of, name) for name in names}


def trajectory_view(event: Trajectory) -> bytes:
    """Return, as JSON, the part of a trajectory from environment and schedule: all but the sampling."""
    turns = [_part(turn, _TURN_FIELDS) for turn in event.turns]
    return msgspec.json.encode(_part(event, _GAME_FIELDS + _TRAJECTORY_FIELDS) | {"turns": turns})


def _started_view(event: GameStarted | GameOutcome) -> bytes:
    """Return, as JSON, the fields that a game's start and its outcome share."""
    seats = [_part(seat, _SEAT_FIELDS) for seat in event.seats]
    return msgspec.json.encode(_part(event, (*_GAME_FIELDS, "evaluated_uid")) | {"seats": seats})


def _view(event: Event) -> bytes:
    assert isinstance(event, Trajectory | GameStarted)
    return trajectory_view(event) if isinstance(event, Trajectory) else _started_view(event)


def _view_of_record(record: StoredRecord) -> bytes:
    return _view(event_from_record(record))


def replay(outcome: GameOutcome, rules: CollectorConfig) -> PlayedAgain:
    """Play a recorded game again; only its actions and their seats come from the record."""
    started = GameStarted(
        event_id="",
        seats=tuple(Seat(**_part(seat, _SEAT_FIELDS)) for seat in outcome.seats),
        moves=outcome.actions[: _made_again(outcome)],
        **_part(outcome, ("run_id", "occurred_at_ms", *_GAME_FIELDS, "evaluated_uid")),
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
    sampling = _part(
        outcome, ("duration_ms", "unparsed", "finish_reasons", "no_answers", "least_likely_turn")
    )
    body = encode_event(msgspec.structs.replace(played.outcome, **sampling))
    return PlayedAgain(
        None if body == encode_event(outcome) else body,
        [(event.event_id, trajectory_view(event)) for event in played.trajectories],
    )


def _made_again(outcome: GameOutcome) -> int:
    return outcome.position.moves if outcome.position else 0


class _RecordedPlayer:
    """Plays the recorded moves of a seat."""

    def __init__(self, outcome: GameOutcome, seat: int) -> None:
        self._actions = [
            action.action for action in outcome.actions[_made_again(outcome) :] if action.seat == seat
        ]
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


async def _outcomes(evidence: Evidence) -> AsyncIterator[tuple[StoredRecord, GameOutcome]]:
    """Yield the outcomes that count. A game whose worker died may have been played twice: then the first."""
    seen: dict[str, IndexSet] = {}
    async for record, event in evidence.events(GameOutcome.TOPIC, "playing games again"):
        if not isinstance(event, GameOutcome) or not event.seats or event.split == IMPORTED:
            continue
        if seen.setdefault(event.split, IndexSet()).add(event.game_index):
            yield record, event


async def _played_again(
    evidence: Evidence, rules: CollectorConfig, jobs: int
) -> AsyncGenerator[_Result, None]:
    """Play the games again, in this process or in several others; yield the results in order."""
    if jobs == 1:
        async for record, outcome in _outcomes(evidence):
            await asyncio.sleep(0)  # a game may take seconds: let the reader of the log run
            yield record, outcome, replay(outcome, rules)
        return
    pool = processes(jobs)
    try:
        waiting: deque[tuple[StoredRecord, GameOutcome, Future[PlayedAgain]]] = deque()
        async for record, outcome in _outcomes(evidence):
            waiting.append((record, outcome, pool.submit(replay, outcome, rules)))
            if len(waiting) > _MOST_WAITING * jobs:
                done, its_outcome, future = waiting.popleft()
                yield done, its_outcome, await asyncio.wrap_future(future)
        for record, outcome, future in waiting:
            yield record, outcome, await asyncio.wrap_future(future)
    finally:
        pool.shutdown(cancel_futures=True)


async def recompute_games(evidence: Evidence, jobs: int) -> list[Check]:
    """Compare games, trajectories and game starts with the games played again by ``jobs`` processes."""
    config = evidence.run.config()
    rules = config.collector
    games = Check("games")
    index, of_starts = RecordIndex(Trajectory.TOPIC), RecordIndex(GameStarted.TOPIC)
    trajectories = DerivedCheck(Check("trajectories"), index, comparable=_view_of_record, replayed=True)
    starts = DerivedCheck(Check("game starts"), of_starts, comparable=_view_of_record, extras=True)
    for derived, kind in ((starts, GameStarted), (trajectories, Trajectory)):
        async for record, event in evidence.events(kind.TOPIC, "reading games"):
            if isinstance(event, kind) and event.split != IMPORTED:
                digest = body_digest(_view(event))
                derived.index.add(record.partition, record.offset, event.event_id, digest)
    async with aclosing(_played_again(evidence, rules, jobs)) as results:
        async for record, outcome, again in results:
            where = str(record)
            view = _started_view(outcome)
            started = event_id(outcome.run_id, "game-started", outcome.split, outcome.game_index)
            starts.expect(Expected(started, body_digest(view), partial(bytes, view), where))
            for expected in _judge(games, where, outcome, again, rules):
                trajectories.expect(expected)
    for derived in (trajectories, starts):
        await derived.finish(evidence.log)
    return [games, trajectories.check, starts.check]


def _judge(
    check: Check, where: str, outcome: GameOutcome, again: PlayedAgain, rules: CollectorConfig
) -> Sequence[Expected]:
    """Compare a game with the game played again; return the trajectories that there must be."""
    check.compared += 1
    if again.problem is not None:
        check.differs(where, outcome.event_id, again.problem)
        seats = [seat.seat for seat in outcome.seats if seat.kind in ON_ENGINE and seat.turns]
        return [Expected(trajectory_id(outcome.game_id, seat), None, bytes, where) for seat in seats]
    if again.outcome is not None:
        source, recorded = "that of the game played again", encode_event(outcome)
        check.compare(where, outcome.event_id, recorded, again.outcome, of="the outcome ", source=source)
    return [
        Expected(name, body_digest(view), partial(_view_again, outcome, rules, name), where)
        for name, view in again.views
    ]


def _view_again(outcome: GameOutcome, rules: CollectorConfig, trajectory: str) -> bytes:
    """Return one view of a game, which is played once more: to keep all views takes more memory."""
    return dict(replay(outcome, rules).views)[trajectory]
