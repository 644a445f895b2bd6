"""Games to play in tests: seats, clocks and players without a model."""

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import textarena as ta

from tests.builders import made
from unstable_stream.events import GameOutcome, GameStarted, Seat
from unstable_stream.games.environments import Environment
from unstable_stream.games.play import PlayedGame, play_game
from unstable_stream.games.players import Move, Player, SampledTokens, TurnContext

RUN = "run-test"


def make_seat(seat: int, *, uid: str | None = None, trained: bool = False) -> Seat:
    """A checkpoint's seat if trained, else a scripted one."""
    if trained:
        uid = uid or "ckpt-000003"
        return made(Seat, seat=seat, model_uid=uid, policy_version=3, template="default", trained=True)
    return made(Seat, seat=seat, model_uid=uid or f"scripted-{seat}", kind="scripted")


def make_started(env_id: str, seats: int | Sequence[Seat], *, index: int = 0, seed: int = 7) -> GameStarted:
    """The decision to play one training game."""
    if isinstance(seats, int):
        seats = [make_seat(seat) for seat in range(seats)]
    return made(
        GameStarted, occurred_at_ms=1_000, game_index=index, env_id=env_id, seed=seed, seats=tuple(seats)
    )


def ticking_clock(step_ms: int = 5) -> Callable[[], int]:
    """A clock that advances by ``step_ms`` whenever it is read; first reads ``10_000``."""
    now = 10_000 - step_ms

    def read() -> int:
        nonlocal now
        now += step_ms
        return now

    return read


@dataclass
class ListPlayer:
    """Plays given actions, as a language model would if ``sampled``; remembers what it was shown."""

    actions: list[str]
    sampled: bool = False
    turns: list[TurnContext] = field(default_factory=list)

    async def move(self, turn: TurnContext) -> Move:
        self.turns.append(turn)
        action = self.actions[turn.turn_index]
        if not self.sampled:
            return Move(action)
        tokens = SampledTokens(
            prompt=f"prompt of {turn.observation}",
            prompt_token_ids=(1, 2, 3),
            completion=f"I play \\boxed{{{action}}}",
            completion_token_ids=(40 + turn.turn_index, 2),
            logprobs=(-0.5, -0.25),
            finish_reason="stop",
            policy_version=3,
            temperature=0.7,
            top_p=0.9,
        )
        return Move(action, {"correct_answer_format": True}, tokens)


def players_of(*actions: list[str], sampled: bool = False) -> dict[int, ListPlayer]:
    """A player for each seat, with the actions that it plays."""
    return {seat: ListPlayer(own, sampled) for seat, own in enumerate(actions)}


def observations(env_id: str, *actions: str) -> list[tuple[int, str]]:
    """Return (seat, observation) of TextArena before each of the actions and after the last."""
    env = ta.make(env_id)
    env.reset(num_players=2, seed=1)
    seen = [env.get_observation()]
    for action in actions:
        env.step(action)
        seen.append(env.get_observation())
    return seen


def begin(env_id: str, num_players: int = 2, *, seed: int = 7, allowed: int = 0) -> Environment:
    """An environment at the beginning of a game."""
    environment = Environment(env_id, invalid_moves_allowed=allowed)
    environment.reset(num_players, seed)
    return environment


class OwnEnvironment:
    """An environment of a user's own that takes anything: two players, one move each."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.heard.clear()

    def get_observation(self) -> tuple[int, str]:
        return len(self.heard), "Available Moves: [a]"

    def step(self, action: str) -> tuple[bool, dict[Any, Any]]:
        self.heard.append(action)
        return len(self.heard) == 2, {}

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, str]]]:
        return {0: 1.0, 1: -1.0}, {}


@dataclass
class GuessingPlayer:
    """Tries any bracketed text it saw, or a likely move; a function of observation and seed.

    Between moves it lets other games run.
    """

    shown: list[str] = field(default_factory=list)

    async def move(self, turn: TurnContext) -> Move:
        self.shown.append(turn.observation)
        rng = random.Random(turn.seed)
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        seen = sorted(set(re.findall(r"\[[^\[\]\n]{1,20}\]", turn.observation)))
        number, pair = rng.randrange(9), f"[{rng.randrange(4)} {rng.randrange(4)}]"
        return Move(rng.choice([*seen, f"[{number}]", pair, "[up]", "hello"]))


async def play(
    started: GameStarted,
    players: Mapping[int, Player],
    *,
    max_turns: int = 200,
    invalid_moves_allowed: int = 0,
    now_ms: Callable[[], int] | None = None,
) -> PlayedGame:
    """Play with a clock that ticks."""
    return await play_game(
        started,
        players,
        max_turns=max_turns,
        now_ms=now_ms or ticking_clock(),
        invalid_moves_allowed=invalid_moves_allowed,
    )


async def shown_again(
    outcome: GameOutcome, *, max_turns: int = 200, invalid_moves_allowed: int = 0
) -> list[str]:
    """Play a recorded game again from its seed and actions; return the text that each move was shown."""
    players = {
        seat.seat: ListPlayer([a.action for a in outcome.actions if a.seat == seat.seat])
        for seat in outcome.seats
    }
    again = await play(
        make_started(outcome.env_id, len(outcome.seats), seed=outcome.seed),
        players,
        max_turns=max_turns,
        invalid_moves_allowed=invalid_moves_allowed,
    )
    assert again.outcome.actions == outcome.actions
    assert again.outcome.reason == outcome.reason
    assert [s.reward for s in again.outcome.seats] == [s.reward for s in outcome.seats]
    turns = [turn for player in players.values() for turn in player.turns]
    return [turn.observation for turn in sorted(turns, key=lambda turn: turn.game_turn)]
