"""Let a person take a seat against a checkpoint, or another person; the game is recorded, rated and archived
like all others.

It is the only game of a run of its own, a fork of the checkpoint's run that trains nothing, in the split
``human``: the run that is being trained does not notice. The steps, in order: record the run and the game,
load the model if it plays, play, record what was played and the end of the run, rate it, archive it.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from unstable_stream.api import checkpoints
from unstable_stream.api.checkpoints import find_policy, policy_at_work, template_in
from unstable_stream.api.evaluation import alone
from unstable_stream.api.launching import end_with_program, has_ended
from unstable_stream.api.loops import stopped
from unstable_stream.api.place import Place
from unstable_stream.api.settings import make_config
from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError, UnstableStreamError
from unstable_stream.events import (
    Event,
    GameStarted,
    RunStarted,
    Seat,
    event_id,
    game_id,
    now_ms,
    storable_text,
)
from unstable_stream.extensions import confined
from unstable_stream.history.views.transcript import TranscriptMove
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.fork import Fork, check_fork
from unstable_stream.runs.recording import derived_name, finish_run, new_run_id, start_run
from unstable_stream.services.streams.reports import Reporter
from unstable_stream.services.tracking.service_reports import LAUNCHER

if TYPE_CHECKING:
    from unstable_stream.games.players import Move, Player, TurnContext

State: TypeAlias = Literal["loading", "yours", "theirs", "storing", "over", "failed"]

HUMAN: Final = "human"
"""The split of these games, the kind of a person's seat, and the person's usual name."""
LOADING: Final = (*checkpoints.LOADING, "the record of the game")
"""The parts that are loaded, or written, before the game begins, in this order."""
_FORGIVEN: Final = 1
"""Invalid moves in a row that cost nothing; recorded, so that the game can be made again."""
_LONGEST_MOVE: Final = 4000
_LONGEST_CLOCK_S: Final = 86_400.0
_PATIENCE_S: Final = 1800.0
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Terms:
    """The settings of a game, which do not change."""

    fork: Fork
    config: RunConfig
    template: str
    patience_s: float
    clock_s: float | None


@dataclass
class _Task:
    """The task that plays in the game's thread, as other threads reach it."""

    loop: asyncio.AbstractEventLoop | None = None
    playing: asyncio.Task[None] | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    answers: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    ended_by: str = ""
    loaded: int = 0


@dataclass
class _Clock:
    """The time that the players have used for their moves, and who thinks now."""

    seat: int
    """The seat of the person who was last asked for a move."""
    asked_at: float = 0.0
    used_s: list[float] = field(default_factory=lambda: [0.0, 0.0])


class HumanGame:
    """One game of a person against a checkpoint, or another person. It goes on in a thread; ask it for its
    state.
    """

    def __init__(
        self,
        place: Place,
        policy: str,
        *,
        env: str | None = None,
        seat: int = 0,
        name: str = HUMAN,
        other: str = "",
        clock_s: float | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """Decide on a game and check it; :meth:`start` it.

        Args:
            place: where the run is.
            policy: ``RUN@UPDATE``, or ``RUN`` for the newest checkpoint.
            env: the environment; ``None``: the run's first one for two players.
            seat: the person's.
            name: the person's.
            other: the name of a person in the other seat, at the same machine, who plays instead of the
                checkpoint; the game's run is forked from the checkpoint's all the same.
            clock_s: seconds that each person has for all moves; ``None``: there is no clock. Who has none
                left has lost, but the game is recorded as one that was given up.
            patience_s: seconds without a move after which a person without a clock has given up.

        Raises:
            RunError: no such run or checkpoint.
            ConfigError: an environment that is not for two players, a seat that there is not, a name of a
                checkpoint or of both, or a clock without time.
        """
        found = find_policy(place, policy)
        if found is None:
            raise ConfigError(f"{policy!r} names a model; a person plays against a checkpoint, RUN@UPDATE")
        self._place = place
        fork, recorded = found
        named = derived_name("play", f"{fork.parent_run_id}-{fork.update}")
        changed = {"learner.iterations": fork.update, "collector.invalid_moves_allowed": _FORGIVEN}
        config = make_config({**alone(recorded), "name": named, **changed}, recorded)
        check_fork(fork, recorded, config, to_train=False)
        envs = {each.env_id: each for each in (*recorded.evaluated_envs, *recorded.train_envs)}
        self.env_id = env or next((each for each, one in envs.items() if one.num_players == 2), "")
        if not self.env_id or (self.env_id in envs and envs[self.env_id].num_players != 2):
            raise ConfigError(f"{self.env_id or policy}: expected an environment for two players")
        if seat not in (0, 1):
            raise ConfigError(f"seat {seat}: expected 0 or 1")
        template = "" if other.strip() else template_in(recorded, self.env_id)
        self._terms = _Terms(fork, config, template, patience_s, clock_s)
        self.run_id = new_run_id(config.name)
        self.game_id = game_id(self.run_id, HUMAN, 0)
        self.seat = seat
        self.people = {seat: storable_text(name).strip()[:60] or HUMAN}
        """The names of the persons, by seat."""
        if other.strip():
            self.people[1 - seat] = storable_text(other).strip()[:60]
        for each in self.people.values():
            if "ckpt-" in each:
                raise ConfigError(f"name={each!r}: it would be taken for a checkpoint; choose another")
        if len(set(self.people.values())) < len(self.people):
            raise ConfigError(f"both persons are named {name!r}: choose two names")
        if clock_s is not None and not 0 < clock_s <= _LONGEST_CLOCK_S:
            raise ConfigError(f"a clock of {clock_s:g} s: expected more than 0 and at most 24 hours")
        self.state: State = "loading"
        self.observation = ""
        self.says = ""
        """The end in words, or what went wrong."""
        self._moves: list[TranscriptMove] = []
        self._clock = _Clock(seat)
        self._changed = threading.Condition()
        self._task = _Task()
        self._thread = threading.Thread(target=self._run, name=f"play {self.game_id}", daemon=True)

    def start(self) -> "HumanGame":
        """Begin it."""
        self._thread.start()  # first: who ends it waits for the thread
        end_with_program(self)
        if not self._thread.is_alive():
            has_ended(self)
        return self

    def move(self, action: str) -> None:
        """Play the person's move, as typed.

        Raises:
            ConfigError: it is not the person's turn, or the move is endless.
        """
        if not action.strip() or len(action) > _LONGEST_MOVE:
            raise ConfigError(f"expected a move of at most {_LONGEST_MOVE:,} characters")
        self._answer(storable_text(action))

    def give_up(self) -> None:
        """End the game at the person's turn; it is recorded as abandoned.

        Raises:
            ConfigError: it is not the person's turn.
        """
        self._answer(None)

    def _answer(self, action: str | None) -> None:
        with self._changed:
            if self.state != "yours":
                raise ConfigError("it is not your turn")
            self.state = "theirs"
        assert self._task.loop is not None
        self._task.loop.call_soon_threadsafe(self._task.answers.put_nowait, action)

    def end(self, reason: str, number: int | None = None) -> None:
        """End the game wherever it is; it is recorded as abandoned."""
        self._task.ready.wait()
        with suppress(RuntimeError):  # its loop is closed: it has just ended
            if self._task.loop is not None and self._task.playing is not None:
                self._task.ended_by = reason
                self._task.loop.call_soon_threadsafe(self._task.playing.cancel)

    def join(self) -> None:
        """Wait for the end of its thread."""
        self._thread.join()

    def wait(self, timeout_s: float, *, for_: Sequence[State] = ("yours", "over", "failed")) -> State:
        """Wait until it is in one of these states, or the time is over; return its state."""
        with self._changed:
            self._changed.wait_for(lambda: self.state in for_, timeout_s)
            return self.state

    @property
    def moves(self) -> Sequence[TranscriptMove]:
        """The moves so far, each with the time that it took."""
        return tuple(self._moves)

    @property
    def to_move(self) -> int:
        """The seat of the person who was last asked for a move."""
        return self._clock.seat

    @property
    def policy(self) -> str:
        """The name of the checkpoint that it plays against."""
        return self._terms.fork.name

    @property
    def names(self) -> dict[int, str]:
        """The names of all players, by seat."""
        return dict.fromkeys((0, 1), self._terms.fork.checkpoints[-1].model_uid) | self.people

    @property
    def loading(self) -> int:
        """The number of the steps of :data:`LOADING` that are done."""
        return self._task.loaded

    def left_s(self, seat: int) -> float | None:
        """Return the seconds that a person's clock has left; ``None``: there is no clock."""
        if self._terms.clock_s is None or seat not in self.people:
            return None
        running = self.state == "yours" and self.to_move == seat
        now_s = time.monotonic() - self._clock.asked_at if running else 0.0
        return max(0.0, self._terms.clock_s - self._clock.used_s[seat] - now_s)

    def called(self, seat: int) -> str:
        """Return the name of a person as this game says it: ``You`` if nobody else could be meant."""
        return self.people[seat] if len(self.people) > 1 else "You"

    @property
    def refused(self) -> str | None:
        """The person's last move, if the environment has just refused it and asks again."""
        if self.state != "yours":
            return None  # the next move may be on its way already
        last = self._moves[-1] if self._moves else None
        return last.action if last and last.seat == self.to_move and not last.valid else None

    # -- its thread ---------------------------------------------------------------------------------

    def _set(self, state: State, says: str = "") -> None:
        with self._changed:
            self.state, self.says = state, says or self.says
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except asyncio.CancelledError:
            self._set("failed", self._task.ended_by)
        except UnstableStreamError as error:
            self._set("failed", str(error))
        except Exception as error:
            self._set("failed", f"{type(error).__name__}: {error}")
            _log.exception("the game failed", game=self.game_id)
            raise
        finally:
            self._task.ready.set()
            has_ended(self)

    async def _play(self) -> None:
        self._task.loop, self._task.playing = asyncio.get_running_loop(), asyncio.current_task()
        self._task.ready.set()
        players: dict[int, Player] = {seat: _Seated(self._asked, self._note) for seat in self.people}
        fork, config = self._terms.fork, self._terms.config
        if len(players) == len(self.names):
            self._loaded(len(checkpoints.LOADING))
            with confined(self._place.allowed_code(fork.parent_run_id, [], config, config)):
                await self._play_recorded(players)
            return
        from unstable_stream.games.templates import get_template
        from unstable_stream.inference.engine import SamplingSettings
        from unstable_stream.inference.policy_player import PolicyPlayer

        chosen, sampling = fork.checkpoints[-1], config.sampling
        async with policy_at_work(self._place, fork, config, self._loaded) as loaded:
            policy = PolicyPlayer(
                loaded.engine,
                loaded.tokenizer,
                get_template(self._terms.template),
                sampling=SamplingSettings(
                    max_tokens=sampling.max_tokens, temperature=sampling.temperature, top_p=sampling.top_p
                ),
                adapter=loaded.adapter,
                policy_version=chosen.iteration,
                max_model_len=config.engine.max_model_len,
            )
            players[1 - self.seat] = _Seated(policy.move, self._note)
            await self._play_recorded(players)

    def _loaded(self, parts: int) -> None:
        self._task.loaded = parts

    async def _play_recorded(self, players: "dict[int, Player]") -> None:
        from unstable_stream.games.play import play_game
        from unstable_stream.services.workers.rollout import abandoned

        async with self._place.opened_log() as log:
            run = await start_run(log, self._terms.config, self.run_id, self._terms.fork)
            started = self._started(run)
            await _append(log, [started])
            self._set("theirs")
            alive = Reporter(log, self.run_id, LAUNCHER, lambda: {"services/game/up": 1.0})
            reporting = asyncio.ensure_future(alive.run())  # a person may think for long
            try:
                played = await play_game(
                    started,
                    players,
                    max_turns=self._terms.config.collector.max_turns,
                    now_ms=now_ms,
                    invalid_moves_allowed=_FORGIVEN,
                )
            except BaseException as error:
                gave_up, ended = isinstance(error, _GivenUpError), isinstance(error, asyncio.CancelledError)
                failed = str(error) if gave_up else f"{type(error).__name__}: {error}"
                reason = self._task.ended_by if ended else failed
                await _append(log, [abandoned(started, reason)])
                await finish_run(log, self.run_id, "stopped" if gave_up or ended else "failed", reason)
                if not gave_up:
                    raise
                late = ": the time is over. It is recorded as one that was given up, and not rated."
                how = f"lost{late}" if isinstance(error, _OutOfTimeError) else "gave up."
                await self._store(log, f"{self.called(self.to_move)} {how}")
                return
            finally:
                reporting.cancel()
            await _append(log, [*played.trajectories, played.outcome])
            await finish_run(log, self.run_id, "completed", "")
            rewards = {each.seat: each.reward for each in played.outcome.seats if each.seat in self.people}
            best = max(rewards, key=lambda seat: rewards[seat])
            lost = "You lost" if rewards[best] < 0 and len(rewards) == 1 else "Nobody won"
            won = f"{self.called(best)} won" if rewards[best] > 0 else lost
            await self._store(log, f"{won}: {played.outcome.reason_text or played.outcome.reason}")

    async def _store(self, log: EventLog, says: str) -> None:
        """Rate the game, and put it into the archive."""
        from unstable_stream.services.streams.service import run_processors
        from unstable_stream.services.workers.archiver import run_archiver

        self._set("storing", says)
        await run_processors(log, self.run_id, stopped())
        await run_archiver(log, self._place.archive, stop=stopped())
        self._set("over")

    def _started(self, run: RunStarted) -> GameStarted:
        chosen = self._terms.fork.checkpoints[-1]
        seats = {
            seat: Seat(
                seat=seat,
                model_uid=uid,
                kind="checkpoint",
                policy_version=chosen.iteration,
                parent_uid=chosen.parent_uid,
                template=self._terms.template,
            )
            if seat not in self.people
            else Seat(seat=seat, model_uid=uid, kind=HUMAN)
            for seat, uid in self.names.items()
        }
        return GameStarted(
            event_id=event_id(self.run_id, "game-started", HUMAN, 0),
            run_id=self.run_id,
            occurred_at_ms=max(run.occurred_at_ms, now_ms()),
            game_id=self.game_id,
            game_index=0,
            split=HUMAN,
            env_id=self.env_id,
            seed=secrets.randbelow(2**31),
            seats=(seats[0], seats[1]),
        )

    async def _asked(self, turn: "TurnContext") -> "Move":
        from unstable_stream.games.players import Move

        left_s = self.left_s(turn.seat)
        with self._changed:
            self.observation = turn.observation
            self._clock.seat, self._clock.asked_at = turn.seat, time.monotonic()
            self.state = "yours"
            self._changed.notify_all()
        whose = f"the person in seat {turn.seat}"
        try:
            wait_s = self._terms.patience_s if left_s is None else left_s
            action = await asyncio.wait_for(self._task.answers.get(), wait_s)
        except TimeoutError:
            if left_s is not None:
                self._clock.used_s[turn.seat] += left_s
                raise _OutOfTimeError(f"{whose} ran out of time") from None
            raise _GivenUpError(f"{whose} made no move for {wait_s:g} s") from None
        if action is None:
            raise _GivenUpError(f"{whose} gave up")
        return Move(action)

    def _note(self, turn: "TurnContext", move: "Move", took_s: float) -> None:
        # A person is told at once: few environments show a refused move to who made it.
        valid = turn.accepts is None or turn.accepts(move.action)
        seen = turn.observation if turn.seat in self.people else None  # not what a model has in its hand
        self._clock.used_s[turn.seat] += took_s
        noted = TranscriptMove(len(self._moves), turn.seat, move.action, valid, seen, None, None, None)
        self._moves.append(replace(noted, latency_ms=1000 * took_s))


class _GivenUpError(Exception):
    """The person does not go on."""


class _OutOfTimeError(_GivenUpError):
    """The clock of the person has run out."""


@dataclass(frozen=True)
class _Seated:
    """A player whose moves are noted."""

    decide: Callable[["TurnContext"], Any]
    """``Any``: a coroutine of a move."""
    note: Callable[["TurnContext", "Move", float], None]

    async def move(self, turn: "TurnContext") -> "Move":
        """Decide, and note it with the seconds that it took."""
        asked_at = time.monotonic()
        move: Move = await self.decide(turn)
        self.note(turn, move, time.monotonic() - asked_at)
        return move


async def _append(log: EventLog, events: Sequence[Event]) -> None:
    await log.append([record_from_event(event) for event in events])
