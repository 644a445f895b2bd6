"""Rollout workers: each plays many games as asyncio tasks and publishes their events.

The trajectories and the outcome of a finished game are appended in one batch, so the log holds all of a
game's results or none.

All games of a process share its event loop, and code that hangs cannot be interrupted. A thread watches how
long a step of an environment holds the loop (:class:`HungGames`), and at its limit:

1. records the game as abandoned, with the reason, over a connection to the log of its own;
2. says so on standard error, and ends the process at once, as by ``kill -9``.

On Ray another worker takes its place; a run in one process is resumed by its user. Either way all its games
without an end in the log are played again, and the abandoned one is not. If the log cannot be reached, the
game is played again, and hangs again.

An extension in C that never releases the interpreter's lock holds this thread too, and is not noticed.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from unstable_stream.errors import EngineDiedError, EngineError, EventLogError, GameError, RecordTooLargeError
from unstable_stream.events import (
    GameAbandoned,
    GameStarted,
    Seat,
    Trajectory,
    event_id,
    event_type,
    now_ms,
    storable_text,
)
from unstable_stream.games.opponents.scripted import scripted_player
from unstable_stream.games.play import PlayedGame, play_game
from unstable_stream.games.players import Player
from unstable_stream.games.templates import get_template
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.inference.engine import Adapter, Engine, SamplingSettings
from unstable_stream.inference.openai import OpenAIEngine
from unstable_stream.inference.policy_player import ChatPlayer, PolicyPlayer
from unstable_stream.inference.tokenizer import load_tokenizer
from unstable_stream.log.cpu_time import spending
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import OpponentConfig, RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.workers.exploitability import ExploitabilityMeter, Measurement

_LOOKS = 10
"""Looks within the time that a step may take. They are counted, not the time: a process that was stopped
looks once when it goes on."""
_LONGEST_REASON = 4000
"""Characters: an exception of foreign code may say anything."""
_RECORDING_S = 30.0
"""The log may be away: the process ends all the same."""


class RolloutWorker:
    """Plays the games passed to it, up to a few hundred at once; workers share the engines."""

    def __init__(
        self,
        config: RunConfig,
        log: EventLog,
        model_path: str,
        engine: Engine,
        others: Mapping[str, Engine] | None = None,
        hung: Callable[[GameStarted], None] | None = None,
    ) -> None:
        """Take what plays.

        ``others``: the engines of other models that are opponents, by path. ``hung`` is called from another
        thread with a game whose environment does not return; ``None``: that is not watched.
        """
        self._hung_games = HungGames(config.collector.env_step_timeout_s, hung) if hung else None
        self._others = dict(others or {})
        self._config = config
        self._engine = engine
        self._tokenizer = load_tokenizer(model_path, config.chat_template_kwargs)
        self._chat_engines: dict[str, OpenAIEngine] = {}
        self._games: dict[str, asyncio.Task[PlayedGame]] = {}
        self._reasons: dict[str, str] = {}
        """The reasons for abandoned games, until they are published."""
        self._event_log = log
        self._appends: set[asyncio.Task[object]] = set()
        self._meter = ExploitabilityMeter(engine, self._tokenizer)
        self._sampling = SamplingSettings(
            max_tokens=config.sampling.max_tokens,
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
        )
        self._opponents = {o.name: o for o in (*config.evaluation.opponents, *config.model_pool.fixed)}
        self._tokenizers = {
            name: load_tokenizer(
                resolve_model(opponent.path, revision=config.model_revisions.get(opponent.path)),
                opponent.chat_template_kwargs,
            )
            for name, opponent in self._opponents.items()
            if opponent.path in self._others
        }

    async def play(self, games: Sequence[GameStarted], adapters: Mapping[str, Adapter]) -> int:
        """Play games to their ends; return the number published as finished.

        ``adapters`` holds those of the checkpoints that play; a checkpoint without one is the base model.

        A game that its environment or an engine refuses, or whose record is larger than its topic takes, is
        abandoned, and the log records this. Raises the first failure that would also hit later games (an
        engine that died, a bug). The games of such a failure are neither finished nor abandoned, and are
        played again after the cause is corrected.
        """
        results = await asyncio.gather(
            *(self._play_one(game, adapters) for game in games), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return sum(result is True for result in results)

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Abandon games that are still being played, and record this in the log."""
        for game_id in game_ids:
            playing = self._games.get(game_id)
            if playing is not None and playing.cancel():
                self._reasons.setdefault(game_id, reason)

    async def measure(self, wanted: Measurement, adapters: Sequence[Adapter | None]) -> None:
        """Measure a checkpoint's exploitability, beside the games, and publish it.

        Raises:
            EngineDiedError: the engine died; it must be measured again.
        """
        await self._publish([record_from_event(await self._meter.measure(wanted, adapters))])

    async def close(self) -> None:
        """Stop playing: games in flight get no end in the log, so they are played again.

        Events already passed on for publishing are published.
        """
        playing = list(self._games.values())
        for game in playing:
            game.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        await asyncio.gather(*self._appends, return_exceptions=True)  # their callers get what they raise
        for engine in self._chat_engines.values():
            await engine.close()
        if self._hung_games is not None:
            self._hung_games.close()

    async def _play_one(self, game: GameStarted, adapters: Mapping[str, Adapter]) -> bool:
        """Play one game and publish its results; return whether it was finished."""
        # The game has its own task. If that is cancelled, even before its first step, this one still records
        # it.
        playing = asyncio.ensure_future(self._play(game, adapters))
        self._games[game.game_id] = playing
        try:
            records = _records(await playing)
        except asyncio.CancelledError:
            reason = self._reasons.pop(game.game_id, None)
            if reason is None:
                raise  # this worker is being stopped, not only this game
            await self._publish([record_from_event(abandoned(game, reason))])
            return False
        except EngineDiedError:
            raise
        except (EngineError, GameError) as error:
            await self._publish([record_from_event(abandoned(game, str(error)))])
            return False
        finally:
            del self._games[game.game_id]
        try:
            await self._publish(records)
        except RecordTooLargeError as error:
            reason = f"game {game.game_id}: {game.env_id}: it is too large to be recorded: {error}"
            await self._publish([record_from_event(abandoned(game, reason))])
            return False
        return True

    async def _publish(self, records: Sequence[Record]) -> None:
        """Return when the records are in the log, in one batch; the log joins batches appended together.

        Raises:
            RecordTooLargeError: one of them is larger than its topic takes; none of them is in the log.
        """
        append = asyncio.ensure_future(self._event_log.append(records))
        self._appends.add(append)
        append.add_done_callback(self._appends.discard)
        await asyncio.shield(append)  # a cancelled game may be in the log, or not, but nothing in between

    async def _play(self, game: GameStarted, adapters: Mapping[str, Adapter]) -> PlayedGame:
        settings = self._config.collector
        players = {seat.seat: self._player(seat, game, adapters) for seat in game.seats}
        return await play_game(
            game,
            players,
            max_turns=settings.max_turns,
            now_ms=now_ms,
            invalid_moves_allowed=settings.invalid_moves_allowed,
            watched=partial(self._hung_games.calling, game) if self._hung_games else contextlib.nullcontext,
        )

    def _player(self, seat: Seat, game: GameStarted, adapters: Mapping[str, Adapter]) -> Player:
        if seat.kind == "scripted":
            opponent = self._opponents.get(seat.model_uid)
            return scripted_player(opponent.scripted if opponent else seat.model_uid, game.env_id)
        template = get_template(seat.template or "default")
        evaluation = self._config.evaluation
        votes, best_of = (evaluation.votes, evaluation.best_of) if _is_evaluated(seat, game) else (1, 1)
        if seat.kind == "openai":
            opponent = self._opponents[seat.model_uid]
            return ChatPlayer(self._chat_engine(opponent), template, _sampling_of(opponent))
        if seat.kind == "model":
            opponent = self._opponents[seat.model_uid]
            assert opponent.path is not None, "checked with the configuration"
            return PolicyPlayer(
                self._others[opponent.path],
                self._tokenizers[opponent.name],
                template,
                sampling=_sampling_of(opponent),
                votes=votes,
                best_of=best_of,
                recorded=False,
            )
        return PolicyPlayer(
            self._engine,
            self._tokenizer,
            template,
            sampling=self._sampling,
            adapter=adapters.get(seat.model_uid),
            policy_version=seat.policy_version,
            max_model_len=self._config.engine.max_model_len,
            votes=votes,
            best_of=best_of,
        )

    def _chat_engine(self, opponent: OpponentConfig) -> OpenAIEngine:
        engine = self._chat_engines.get(opponent.name)
        if engine is None:
            variables = opponent.chat_template_kwargs
            engine = OpenAIEngine(
                model=opponent.name,
                base_url=opponent.base_url,
                api_key_env=opponent.api_key_env,
                max_tokens_name=opponent.max_tokens_name,
                own_temperature=opponent.temperature == "default",
                extra_body=opponent.extra_body | ({"chat_template_kwargs": variables} if variables else {}),
            )
            self._chat_engines[opponent.name] = engine
        return engine


def _sampling_of(opponent: OpponentConfig) -> SamplingSettings:
    temperature = 1.0 if opponent.temperature == "default" else opponent.temperature
    return SamplingSettings(max_tokens=opponent.max_tokens, temperature=temperature)


def _is_evaluated(seat: Seat, game: GameStarted) -> bool:
    """In a round robin nobody is singled out: all are evaluated."""
    return game.split == "eval" and game.evaluated_uid in (None, seat.model_uid)


def _records(played: PlayedGame) -> list[Record]:
    """Return the records of a game.

    Raises:
        GameError: an event has something in it that cannot be recorded; names the game and the player.
    """
    records = []
    outcome = played.outcome
    for event in (*played.trajectories, outcome):
        try:
            records.append(record_from_event(event))
        except (TypeError, ValueError, RecursionError) as error:
            whose = f" of {event.model_uid} in seat {event.seat}" if isinstance(event, Trajectory) else ""
            raise GameError(
                f"game {outcome.game_id}: {outcome.env_id}: the {event_type(event)}{whose} cannot be "
                f"recorded: {type(error).__name__}: {error}"
            ) from error
    return records


class HungGames:
    """Watches the calls into environments of one thread; :meth:`close` ends the watching."""

    def __init__(self, timeout_s: float, hung: Callable[[GameStarted], None]) -> None:
        """Call ``hung``, in another thread, with the game whose environment took ``timeout_s`` seconds."""
        self._look_s = timeout_s / _LOOKS
        self._hung = hung
        self._calls = 0
        """Calls so far: a number of its own for each."""
        self._inside: tuple[int, GameStarted] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hung-games", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def calling(self, game: GameStarted) -> Iterator[None]:
        """Watch one call into the environment of a game."""
        self._calls += 1
        self._inside = (self._calls, game)
        try:
            with spending("environments"):
                yield
        finally:
            self._inside = None

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        seen, times = 0, 0
        while not self._closed.wait(self._look_s):
            inside = self._inside
            if inside is None:
                times = 0
                continue
            call, game = inside
            times = times + 1 if call == seen else 1
            seen = call
            if times > _LOOKS:
                self._hung(game)
                return


def end_with(config: RunConfig, data: DataDir, advice: str) -> Callable[[GameStarted], None]:
    """Return what records a hung game as abandoned and ends this process with status 1.

    ``advice`` says on standard error how the run goes on.
    """
    timeout_s = config.collector.env_step_timeout_s

    def end(game: GameStarted) -> None:
        reason = f"game {game.game_id}: {game.env_id}: its environment did not return within {timeout_s:g} s"
        then = "it is abandoned"
        try:
            asyncio.run(asyncio.wait_for(_record(config, data, abandoned(game, reason)), _RECORDING_S))
        except (EventLogError, OSError, TimeoutError) as error:
            then = f"this could not be recorded, so it will be played again: {type(error).__name__}: {error}"
        finally:
            try:
                print(
                    f"GameError: {reason} (collector.env_step_timeout_s); {then}. Code that hangs cannot be "
                    f"interrupted: this process ends. {advice}",
                    file=sys.stderr,
                    flush=True,
                )
            finally:  # also where standard error is on a full disk
                os._exit(1)

    return end


async def _record(config: RunConfig, data: DataDir, event: GameAbandoned) -> None:
    async with opened_log(config.log, data.log, synchronous=config.synchronous) as log:
        await log.append([record_from_event(event)])


def abandoned(game: GameStarted, reason: str) -> GameAbandoned:
    """Return the event of a game that has no result."""
    return GameAbandoned(
        event_id=event_id(game.run_id, "game-abandoned", game.game_id),
        run_id=game.run_id,
        occurred_at_ms=now_ms(),
        game_id=game.game_id,
        game_index=game.game_index,
        split=game.split,
        reason=storable_text(reason)[:_LONGEST_REASON],
    )
