"""The door to TextArena: fresh objects, typed results, invalid moves, and refusals that help."""

import random
import sys

import pytest

from tests.games.builders import begin
from unstable_stream.errors import EnvironmentUnavailableError, GameError
from unstable_stream.games.environments import (
    Environment,
    check_environment,
    environment_status,
    list_environments,
)


def test_lists_the_training_variants() -> None:
    ids = list_environments()
    assert len(ids) == 237
    assert ids == sorted(ids)
    assert {"SimpleTak-v0-train", "TicTacToe-v0-train", "SecretMafia-v0-train"} <= set(ids)
    assert all(env_id.endswith("-train") for env_id in ids)


@pytest.mark.parametrize(
    ("env_id", "num_players", "expected"),
    [
        ("SimpleTack-v0-train", 2, "'SimpleTack-v0-train'; did you mean SimpleTak-v0-train"),
        ("qqqq", 2, "environments.md lists them"),
        ("TicTacToe-v0-train", 3, "has to be 2, received 3. Remedy: change the number of players"),
        ("SecretMafia-v0-train", 3, "between 5 and 15"),
        ("LightsOut-v0-train", 1, "use 'LightsOut-v0', which shows all messages"),
        ("UsedCar-v0-balanced-train", 2, "lacks the module textarena.envs.UsedCar"),
        ("ScorableGames-v0-train", 6, "lacks a data file"),
        ("CharacterConclave-v0-train", 3, "failed at turn 0"),
        ("Debate-v0-train", 2, "set OPENROUTER_API_KEY"),
        pytest.param(
            *("ReverseTicTacToe-v0-train", 2, "run on Python 3.12"),
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python 3.12 accepts its syntax"),
        ),
    ],
)
def test_refuses_with_name_reason_and_remedy(
    env_id: str, num_players: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    with pytest.raises(EnvironmentUnavailableError) as caught:
        check_environment(env_id, num_players)
    assert env_id in str(caught.value)
    assert expected in str(caught.value)
    assert environment_status(env_id, num_players) is not None


def test_an_object_is_good_for_one_game() -> None:
    environment = begin("TicTacToe-v0-train")
    with pytest.raises(GameError, match="already used"):
        environment.reset(2, 7)


def test_nothing_is_possible_before_the_beginning_or_after_the_end() -> None:
    environment = Environment("TicTacToe-v0-train", label="game 12")
    for attempt in (environment.observe, environment.close, lambda: environment.step("[0]")):
        with pytest.raises(GameError, match="game 12"):
            attempt()
    environment.reset(2, 7)
    for cell in (0, 3, 1, 4, 2):
        assert not environment.done
        result = environment.step(f"[{cell}]")
    assert result.done
    with pytest.raises(GameError, match="the game has not begun or is over"):
        environment.step("[8]")
    assert environment.close().rewards == {0: 1.0, 1: -1.0}
    assert environment.turn == 5


def test_allowed_invalid_moves_are_counted_in_a_row() -> None:
    environment = begin("TicTacToe-v0-train", allowed=1)
    assert environment.step("[4]").valid
    for _ in range(2):  # seat 1 errs once, mends it; then errs once more in its next turn
        result = environment.step("[4]")
        assert (result.done, result.valid) == (False, False)
        assert environment.observe().seat == 1
        cell = "[0]" if environment.turn == 2 else "[1]"
        assert environment.step(cell).valid
        if cell == "[0]":
            assert environment.step("[8]").valid
    assert environment.close().invalid_seats == frozenset()

    environment = begin("TicTacToe-v0-train", allowed=1)
    assert [environment.step("[9]").done for _ in range(2)] == [False, True]
    assert environment.close().rewards == {0: -1.0, 1: 1.0}


def test_allowance_overrides_what_an_environment_sets_in_reset() -> None:
    # NewRecruit gives three attempts by default.
    assert begin("NewRecruit-v0-train").step("nonsense").done
    assert not begin("NewRecruit-v0-train", allowed=1).step("nonsense").done


def test_three_players_share_the_win_over_one_who_errs() -> None:
    environment = begin("ThreePlayerTicTacToe-v0-train", 3)
    environment.step("[0]")
    assert environment.step("[0]").done
    closed = environment.close()
    assert closed.rewards == {0: 1.0, 1: -1.0, 2: 1.0}
    assert closed.invalid_seats == {1}


def test_swapped_reward_and_reason_are_put_right() -> None:
    environment = begin("Countdown-v0-train", 1)
    result = environment.step("[what]")
    assert result.done
    assert result.invalid_reason is not None
    assert result.invalid_reason.startswith("Invalid action format")
    rewards = environment.close().rewards
    assert rewards is not None
    assert 0.0 <= rewards[0] < 1.0


def test_a_game_whose_players_are_all_out_ends() -> None:
    environment = begin("PublicGoodsGame-v0-train")
    while not environment.done:
        assert environment.turn < 50
        environment.step("nonsense")
    closed = environment.close()
    assert closed.rewards == {0: -1.0, 1: -1.0}
    assert closed.reason == "every player is out"


def test_roles_are_names_of_their_own() -> None:
    assert begin("TicTacToe-v0-train").close().roles == {}
    assert begin("Othello-v0-tiny-train").close().roles == {0: "Black", 1: "White"}
    roles = begin("SecretMafia-v0-train", 6, seed=5).close().roles
    assert sorted(roles.values()) == ["Detective", "Doctor", "Mafia", "Mafia", "Villager", "Villager"]


def test_raw_environments_show_the_new_messages_as_text() -> None:
    environment = begin("SimpleTak-v0-raw")
    first = environment.observe().text
    assert first.startswith("[GAME] You are Player 0 in SimpleTak.")
    environment.step("[5]")
    second = environment.observe().text
    assert "[Player 0] [5]\n[GAME] Player 0 placed their symbol (O) in cell 5." in second


def test_a_seed_fixes_the_game_whatever_happens_outside() -> None:
    def deal(seed: int) -> str:
        return begin("KuhnPoker-v0-train", seed=seed).observe().text

    random.seed(1)
    first = [deal(seed) for seed in range(12)]
    random.seed(2)
    state = random.getstate()
    assert [deal(seed) for seed in range(12)] == first
    assert random.getstate() == state
    assert len(set(first)) > 1


def test_a_failing_environment_names_game_and_turn_and_leaves_no_trace() -> None:
    environment = Environment("CharacterConclave-v0-train", label="game 99")
    environment.reset(3, 1)
    state = random.getstate()
    with pytest.raises(
        GameError, match=r"game 99: CharacterConclave-v0-train: failed at turn 0 on action '\[x\]'"
    ):
        environment.step("[x]")
    assert random.getstate() == state
