"""Copies of a game to try moves on: they are like the game, apart from it, and made in two ways."""

import asyncio
import copy
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from unstable_stream.games.environments import Environment
from unstable_stream.games.opponents.grammars import GRAMMARS
from unstable_stream.games.opponents.scripted import scripted_player
from unstable_stream.games.players import TurnContext
from unstable_stream.games.rehearsal import Copies, Rehearsal, deep_copy

# The smallest of each family that is played by trying, if not the first of its name for two.
OTHERS = {
    "ConnectFour": ("ConnectFour-v0-blind-train", 2),
    "Othello": ("Othello-v0-hard-train", 2),
    "SecretMafia": ("SecretMafia-v0-train", 6),
    "SettlersOfCatan": ("SettlersOfCatan-v0-train", 4),
    "Taboo": ("Taboo-v0-train", 4),
    "ThreePlayerGOPS": ("ThreePlayerGOPS-v0-train", 3),
    "ThreePlayerIPD": ("ThreePlayerIPD-v0-train", 3),
    "Breakthrough": ("Breakthrough-v0-tiny-train", 2),
}
PLAYED = [OTHERS.get(name, (f"{name}-v0-train", 2)) for name in GRAMMARS]


@pytest.mark.parametrize(("env_id", "num_players"), PLAYED)
def test_pickled_copies_are_like_deep_ones(env_id: str, num_players: int) -> None:
    environment = Environment(env_id)
    environment.reset(num_players, seed=3)
    player = scripted_player("random-legal", env_id)
    for turn in range(6):
        if environment.done:
            break
        seen = environment.observe()
        made = Copies(environment._env)
        assert made.pickled
        before = _described(environment._env)
        assert _described(made.make()) == _described(deep_copy(environment._env))
        shown = TurnContext(env_id, seen.seat, num_players, 0, turn, turn, seen.text, environment.accepts)
        move = asyncio.run(player.move(shown)).action
        for action in (move, "[0]", "nonsense"):
            quick = Rehearsal(environment._env, num_players=num_players, with_numpy=True)
            slow = Rehearsal(environment._env, num_players=num_players, with_numpy=True)
            slow._copies = _Deep(environment._env)
            assert quick.accepts(action) == slow.accepts(action)
        assert _described(environment._env) == before
        environment.step(move)


class _Deep(Copies):
    def __init__(self, env: Any) -> None:
        self.make = lambda: deep_copy(env)  # type: ignore[method-assign]


def _described(thing: Any, above: tuple[int, ...] = ()) -> Any:
    """Everything in it, by value; the functions bound to a state, which a copy gets anew, left out."""
    if id(thing) in above:
        return "itself"
    above = (*above, id(thing))
    if isinstance(thing, dict):
        return {repr(key): _described(value, above) for key, value in thing.items()}
    if isinstance(thing, (list, tuple, set, frozenset)):
        return [_described(value, above) for value in thing]
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, np.ndarray):
        return thing.tolist()
    if hasattr(thing, "__dict__") and not isinstance(thing, type) and not callable(thing):
        held = {
            key: value for key, value in vars(thing).items() if key not in ("set_invalid_move", "set_winner")
        }
        return type(thing).__name__, _described(held, above)
    return re.sub(r" at 0x\w+", "", repr(thing))


class Counting:
    """An environment of a user's own: whoever says how far it is."""

    def __init__(self, rule: Callable[[str], bool] | None = None) -> None:
        self.said: list[str] = []
        self.rule = rule

    def reset(self, num_players: int, seed: int | None = None) -> None:
        pass

    def get_observation(self) -> tuple[int, str]:
        return len(self.said) % 2, "Available Moves: [0]"

    def step(self, action: str) -> tuple[bool, dict[str, object]]:
        wrong = action != f"[{len(self.said)}]" or (self.rule is not None and not self.rule(action))
        self.said.append(action)
        return wrong, {"invalid_move": wrong}

    def close(self) -> tuple[dict[int, float], dict[int, dict[str, object]]]:
        return {0: 1.0, 1: 0.0}, {}


class CopiesItself(Counting):
    """One that says how to copy it."""

    copied = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "CopiesItself":
        CopiesItself.copied += 1
        other = CopiesItself()
        other.said = copy.copy(self.said)
        return other


def with_a_rule() -> Counting:
    """One that holds a function that cannot be pickled."""
    return Counting(lambda action: len(action) == 3)


@pytest.mark.parametrize(
    ("name", "pickled"), [("Counting", True), ("CopiesItself", False), ("with_a_rule", False)]
)
def test_what_cannot_be_pickled_is_copied_deeply(name: str, pickled: bool) -> None:
    environment = Environment(f"{__name__}:{name}")
    environment.reset(2, seed=0)
    assert Copies(environment._env).pickled is pickled
    for turn in range(3):
        assert [environment.accepts(f"[{number}]") for number in range(4)] == [n == turn for n in range(4)]
        assert environment.step(f"[{turn}]").valid


def test_an_environment_that_copies_itself_is_asked_to() -> None:
    before = CopiesItself.copied
    environment = Environment(f"{__name__}:CopiesItself")
    environment.reset(2, seed=0)
    assert environment.accepts("[0]")
    assert type(environment._env).copied > before


def test_a_win_of_tak_ends_the_game_and_trying_it_does_not() -> None:
    environment = Environment("Tak-v0-train")
    environment.reset(2, seed=0)
    size = environment._env.board_size
    for row in range(size):
        for seat, column in ((0, 0), (1, size - 1)):
            action = f"[place () {{({row},{column}): [F{seat}]}}]"
            assert environment.accepts(action)
            assert not environment.done
            assert environment.step(action).valid
            if environment.done:
                break
    assert environment.done
    result = environment.close()
    assert result.rewards == {0: 1.0, 1: -1.0}
    assert result.reason == "Player 0 has connected two opposite edges of the board."
