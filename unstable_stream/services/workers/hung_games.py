"""Games whose environment does not return: code that hangs cannot be interrupted, so its process ends.

All games of a process share its event loop, and an environment's step holds it. A thread watches how long:

1. it records the game as abandoned, with the reason, over a connection to the log of its own;
2. it says so on standard error, and ends the process at once, as by ``kill -9``.

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
import time
from collections.abc import Callable, Iterator

from unstable_stream.errors import EventLogError
from unstable_stream.events import GameAbandoned, GameStarted, event_id, storable_text
from unstable_stream.log.open import opened_log
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir

_LOOKS = 10
"""Looks within the time that a step may take. They are counted, not the time: a process that was stopped
looks once when it goes on."""
_LONGEST_REASON = 4000
"""Characters: an exception of foreign code may say anything."""
_RECORDING_S = 30.0
"""The log may be away: the process ends all the same."""


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
        occurred_at_ms=time.time_ns() // 1_000_000,
        game_id=game.game_id,
        game_index=game.game_index,
        split=game.split,
        reason=storable_text(reason)[:_LONGEST_REASON],
    )
