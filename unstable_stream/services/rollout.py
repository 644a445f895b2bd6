"""Rollout workers: Ray actors that each play many games as asyncio tasks and publish what happened.

A finished game's trajectories and outcome are appended in one batch, so that either all of a game is in
the log or nothing. Games that finish together share an append.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unstable_stream.config import OpponentConfig, RunConfig
from unstable_stream.errors import GameError
from unstable_stream.eventlog.port import Record
from unstable_stream.eventlog.records import record_from_event
from unstable_stream.events import Event, GameAbandoned, GameStarted, Seat, decode_event, event_id
from unstable_stream.games.play import play_game
from unstable_stream.games.players import Player
from unstable_stream.games.scripted import scripted_player
from unstable_stream.games.templates import get_template
from unstable_stream.inference.openai_engine import OpenAIEngine
from unstable_stream.inference.policy_player import ChatPlayer, PolicyPlayer
from unstable_stream.inference.port import Adapter, SamplingSettings
from unstable_stream.inference.tokenizer import load_tokenizer
from unstable_stream.services.data_dir import DataDir, open_log
from unstable_stream.services.engine_actor import RemoteEngine

__all__ = ["RolloutWorker"]


class RolloutWorker:
    """The Ray actor. One per few hundred games; engines are shared among workers."""

    def __init__(
        self, config: RunConfig, run_id: str, data_root: str, model_path: str, engines: Sequence[Any]
    ):
        self._config = config
        self._run_id = run_id
        self._engine = RemoteEngine(engines)
        self._tokenizer = load_tokenizer(model_path)
        self._log = open_log(config, DataDir(Path(data_root)))
        self._chat_engines: dict[str, OpenAIEngine] = {}
        self._games: dict[str, asyncio.Task[None]] = {}
        self._publisher = _Publisher(self._log.append)
        self._sampling = SamplingSettings(
            max_tokens=config.sampling.max_tokens,
            temperature=config.sampling.temperature,
            top_p=config.sampling.top_p,
        )
        self._opponents = {o.name: o for o in (*config.evaluation.opponents, *config.model_pool.fixed)}

    async def play(self, games: Sequence[bytes], adapter_paths: Mapping[str, str | None]) -> int:
        """Play encoded ``game-started`` events to their ends; return how many were published as finished.

        Raises the first failure that no later game would be spared (an engine that is gone, a bug).
        """
        tasks = []
        for data in games:
            game = decode_event(data)
            assert isinstance(game, GameStarted)
            task = asyncio.ensure_future(self._play_one(game, adapter_paths))
            self._games[game.game_id] = task
            tasks.append(task)
        try:
            results = await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for data in games:
                self._games.pop(decode_event(data).game_id, None)  # type: ignore[attr-defined]
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
        return sum(1 for result in results if result is None)

    async def cancel(self, game_ids: Sequence[str], reason: str) -> None:
        """Give up games that are still being played, and say so in the log."""
        for game_id in game_ids:
            task = self._games.get(game_id)
            if task is not None:
                task.cancel(reason)

    async def _play_one(self, game: GameStarted, adapter_paths: Mapping[str, str | None]) -> None:
        settings = self._config.collector
        try:
            players = {seat.seat: self._player(seat, game.env_id, adapter_paths) for seat in game.seats}
            played = await play_game(
                game,
                players,
                max_turns=settings.max_turns,
                now_ms=_now_ms,
                invalid_moves_allowed=settings.invalid_moves_allowed,
            )
        except asyncio.CancelledError as stop:
            await self._publisher.publish([_abandoned(game, str(stop) or "cancelled")])
            raise
        except GameError as error:
            await self._publisher.publish([_abandoned(game, str(error))])
            return
        await self._publisher.publish([*played.trajectories, played.outcome])

    def _player(self, seat: Seat, env_id: str, adapter_paths: Mapping[str, str | None]) -> Player:
        if seat.kind == "scripted":
            return scripted_player(seat.model_uid, env_id)
        template = get_template(seat.template or "default")
        if seat.kind == "openai":
            opponent = self._opponents[seat.model_uid]
            sampling = SamplingSettings(max_tokens=opponent.max_tokens, temperature=opponent.temperature)
            return ChatPlayer(self._chat_engine(opponent), template, sampling)
        path = adapter_paths[seat.model_uid]
        return PolicyPlayer(
            self._engine,
            self._tokenizer,
            template,
            sampling=self._sampling,
            adapter=Adapter(seat.model_uid, path) if path else None,
            policy_version=seat.policy_version,
        )

    def _chat_engine(self, opponent: OpponentConfig) -> OpenAIEngine:
        engine = self._chat_engines.get(opponent.name)
        if engine is None:
            engine = OpenAIEngine(
                model=opponent.name, base_url=opponent.base_url, api_key_env=opponent.api_key_env
            )
            self._chat_engines[opponent.name] = engine
        return engine


class _Publisher:
    """Appends what was handed in while the previous append was under way, all in one batch."""

    def __init__(self, append: Any) -> None:
        self._append = append
        self._waiting: list[Record] = []
        self._flushed: asyncio.Future[None] | None = None

    async def publish(self, events: Sequence[Event]) -> None:
        """Return once the events are in the log; events of one call are appended together."""
        self._waiting.extend(record_from_event(event) for event in events)
        if self._flushed is None:
            self._flushed = asyncio.ensure_future(self._flush())
        # Shielded: cancelling one game must not cancel the append it shares with others.
        await asyncio.shield(self._flushed)

    async def _flush(self) -> None:
        await asyncio.sleep(0)  # let games that finish in the same turn of the loop join
        records, self._waiting, self._flushed = self._waiting, [], None
        await self._append(records)


def _abandoned(game: GameStarted, reason: str) -> GameAbandoned:
    return GameAbandoned(
        event_id=event_id(game.run_id, "game-abandoned", game.game_id),
        run_id=game.run_id,
        occurred_at_ms=_now_ms(),
        game_id=game.game_id,
        game_index=game.game_index,
        split=game.split,
        reason=reason,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
