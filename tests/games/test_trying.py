"""Legal moves found by trying: always legal, reproducible, and the game does not notice."""

import random
import threading

import pytest

from tests.games.builders import OwnEnvironment, begin
from unstable_stream.errors import GameError
from unstable_stream.games.opponents.grammars import first_legal, random_legal
from unstable_stream.games.players import TurnContext


def test_what_is_accepted_is_what_step_calls_valid() -> None:
    chopsticks = {"[attack 0 1]": True, "[split 0 2]": True, "[split 1 1]": False, "hi": False}
    games = {"Chopsticks-v0-train": chopsticks, "openspiel:kuhn_poker": {"[Bet]": True, "[Fold]": False}}
    for env_id, moves in games.items():
        for action, legal in moves.items():
            environment = begin(env_id, seed=1)
            assert environment.accepts(action) is environment.accepts(action) is legal
            assert environment.step(action).valid is legal


def test_asking_leaves_the_game_and_the_global_generators_alone() -> None:
    state = random.getstate()
    asked, untouched = (begin("LiarsDice-v0-train", seed=5) for _ in range(2))
    for action in ("[Bid: 2, 3]", "[Bid: 9, 9]", "[Call]", "[Bid: 3, 3]", "[Call]"):
        for tried in ("[Call]", "[Bid: 4, 4]", "nonsense"):
            asked.accepts(tried)
        results = [environment.step(action) for environment in (asked, untouched)]
        assert results[0] == results[1]
        if asked.done:
            break
        assert asked.observe() == untouched.observe()
    assert asked.close() == untouched.close()
    assert random.getstate() == state


def test_a_win_of_tak_ends_the_game_and_trying_it_does_not() -> None:
    environment = begin("Tak-v0-train", seed=0)
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


class Uncopied(OwnEnvironment):
    """It holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_what_cannot_be_copied_is_said() -> None:
    environment = begin(f"{__name__}:Uncopied", seed=0)
    with pytest.raises(GameError, match=r"cannot try '\[a\]' at turn 0 on a copy.*lock"):
        environment.accepts("[a]")


def test_a_game_that_is_over_accepts_nothing() -> None:
    environment = begin("Chopsticks-v0-train", seed=1)
    environment.step("nonsense")
    with pytest.raises(GameError, match="has not begun or is over"):
        environment.accepts("[attack 0 1]")


def _turn(seed: int = 0, legal: tuple[str, ...] = ()) -> TurnContext:
    return TurnContext("Any-v0", 0, 2, 0, 0, seed, "text", legal.__contains__)


def test_legal_actions_of_a_kind_are_equally_likely() -> None:
    choose = random_legal(lambda turn, chance: [["a", "b", "c", "d"], ["e"], ["f"]])
    chosen = [choose(_turn(seed, ("b", "d", "e")))[0] for seed in range(3000)]
    share = {action: chosen.count(action) / len(chosen) for action in "bde"}
    assert sum(share.values()) == pytest.approx(1)
    assert share == {"b": pytest.approx(0.25, abs=0.03), "d": share["d"], "e": pytest.approx(0.5, abs=0.03)}


def test_who_has_no_legal_move_makes_the_first() -> None:
    assert first_legal(lambda turn, chance: [["a"], ["b"]])(_turn()) == ["a"]
    assert first_legal(lambda turn, chance: [["a"], ["b"]])(_turn(legal=("b",))) == ["b"]


def test_trying_needs_a_game_and_something_to_try() -> None:
    with pytest.raises(GameError, match="so the turn must have `accepts`"):
        first_legal(lambda turn, chance: [["a"]])(TurnContext("Any-v0", 0, 2, 0, 0, 0, "text"))
    with pytest.raises(GameError, match="found none in 'text'"):
        first_legal(lambda turn, chance: [[]])(_turn())
