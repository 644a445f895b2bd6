"""Scripted opponents: legal, reproducible, as strong as their names say."""

import pytest

from tests.games.builders import make_started, play
from unstable_stream.errors import ConfigError, GameError
from unstable_stream.events import GameOutcome
from unstable_stream.games.opponents.legal_moves import (
    connect_four_columns,
    connect_four_rows,
    grid_cells,
    listed_moves,
    nim_moves,
    nim_piles,
    othello_moves,
)
from unstable_stream.games.opponents.scripted import (
    SCRIPTED_NAMES,
    check_scripted,
    scripted_names,
    scripted_player,
)
from unstable_stream.games.opponents.search import TakBoard


async def match(env_id: str, names: list[str], games: int, *, first_seed: int = 0) -> list[GameOutcome]:
    players = {seat: scripted_player(name, env_id) for seat, name in enumerate(names)}
    return [
        (await play(make_started(env_id, len(names), index=i, seed=first_seed + i), players)).outcome
        for i in range(games)
    ]


def score(outcomes: list[GameOutcome], seat: int) -> tuple[int, int, int]:
    """Wins, draws and losses of a seat."""
    rewards = [outcome.seats[seat].reward for outcome in outcomes]
    return rewards.count(1.0), rewards.count(0.0), rewards.count(-1.0)


@pytest.mark.parametrize(
    ("env_id", "num_players"),
    [
        (f"{base}{variant}", 2)
        for base in ("TicTacToe-v0", "ConnectFour-v0", "Nim-v0", "SimpleTak-v0")
        for variant in ("-train", "", "-raw")
    ]
    + [
        ("ConnectFour-v0-large-train", 2),
        ("Nim-v0-large-train", 2),
        ("SimpleTak-v0-extreme-train", 2),
        ("KuhnPoker-v0-train", 2),
        ("Othello-v0-tiny-train", 2),
        ("PigDice-v0-short-train", 2),
        ("WildTicTacToe-v0-train", 2),
        ("ThreePlayerTicTacToe-v0-train", 3),
        ("FifteenPuzzle-v0-train", 1),
    ],
)
async def test_every_move_is_legal(env_id: str, num_players: int) -> None:
    for names in (["random-legal"] * num_players, ["first-legal"] * num_players):
        for outcome in await match(env_id, names, 6):
            assert all(action.valid for action in outcome.actions)
            assert outcome.num_turns > 0


@pytest.mark.parametrize("env_id", ["SimpleTak-v0-train", "SimpleNegotiation-v0", "Snake-v0-raw", "Poker-v0"])
async def test_chance_is_a_function_of_the_turns_seed(env_id: str) -> None:
    names = ["random-legal", "random-legal"]
    once, again = await match(env_id, names, 4), await match(env_id, names, 4)
    assert once == again
    assert len({outcome.actions for outcome in once}) == 4


@pytest.mark.parametrize(
    ("env_id", "first"),
    [
        ("TicTacToe-v0-train", [f"[{cell}]" for cell in range(7)]),
        ("UltimateTicTacToe-v0-train", ["[0 0]", "[0 1]", "[1 0]"]),  # the first of its grammar
    ],
)
async def test_first_legal_takes_the_first(env_id: str, first: list[str]) -> None:
    (outcome,) = await match(env_id, ["first-legal", "first-legal"], 1)
    assert [action.action for action in outcome.actions[: len(first)]] == first


async def test_perfect_tictactoe_never_loses() -> None:
    env_id = "TicTacToe-v0-train"
    wins, _, losses = score(await match(env_id, ["perfect", "random-legal"], 120), 0)
    assert losses == 0
    assert wins > 100
    wins, _, losses = score(await match(env_id, ["random-legal", "perfect"], 120), 1)
    assert losses == 0
    assert wins > 70
    assert score(await match(env_id, ["perfect", "perfect"], 20), 0) == (0, 20, 0)


@pytest.mark.parametrize("env_id", ["Nim-v0-train", "Nim-v0-medium-train", "Nim-v0-large-train"])
async def test_perfect_nim_wins_from_won_positions(env_id: str) -> None:
    # 3^4^5 = 2, 4^2^3^7 = 2 and 5^7^9^11^2 = 2: the first player has won, if it plays well.
    assert score(await match(env_id, ["perfect", "random-legal"], 25), 0) == (25, 0, 0)
    assert score(await match(env_id, ["perfect", "perfect"], 5), 0) == (5, 0, 0)


@pytest.mark.parametrize("env_id", ["ConnectFour-v0-train", "SimpleTak-v0-train"])
async def test_looking_ahead_beats_chance(env_id: str) -> None:
    for seat, names in enumerate((["minimax-2", "random-legal"], ["random-legal", "minimax-2"])):
        wins, draws, losses = score(await match(env_id, names, 30), seat)
        assert wins >= 24, (wins, draws, losses)
        assert losses <= 2


def test_which_players_can_play_what() -> None:
    assert scripted_names("TicTacToe-v0-train") == ("random-legal", "first-legal", "perfect")
    assert scripted_names("Nim-v0-large-raw") == ("random-legal", "first-legal", "perfect")
    assert scripted_names("ConnectFour-v0") == ("random-legal", "first-legal", "minimax-2", "minimax-4")
    assert scripted_names("ConnectFour-v0-blind-train") == ("random-legal", "first-legal")
    assert scripted_names("SimpleTak-v0-train")[2:] == ("minimax-2", "minimax-4")
    assert scripted_names("SimpleTak-v0-extreme-train")[2:] == ("minimax-2",)
    assert scripted_names("Othello-v0-hard-train") == ("random-legal", "first-legal")
    assert scripted_names("SecretMafia-v0-train") == ("random-legal", "first-legal")
    assert scripted_names("Sudoku-v0-train") == ()
    assert set(scripted_names("KuhnPoker-v0-train")) < set(SCRIPTED_NAMES)


@pytest.mark.parametrize(
    ("name", "env_id", "message"),
    [
        ("alphazero", "TicTacToe-v0-train", "player 'alphazero'; expected one of random-legal"),
        ("random-legal", "Sudoku-v0-train", "no scripted player can play 'Sudoku-v0-train'"),
        ("perfect", "ConnectFour-v0-train", "available: random-legal, first-legal, minimax-2, minimax-4"),
        ("minimax-4", "SimpleTak-v0-extreme-train", "available: random-legal, first-legal, minimax-2"),
    ],
)
def test_what_cannot_be_played_is_refused_at_configuration_time(name: str, env_id: str, message: str) -> None:
    for attempt in (check_scripted, scripted_player):
        with pytest.raises(ConfigError, match=message):
            attempt(name, env_id)


def test_the_last_list_counts() -> None:
    text = "Available Moves: [0], [1]\n[Player 1] Available Moves: [9]\nAvailable Moves: '[2]', '[X 3]'\n"
    assert listed_moves(text) == ["[2]", "[X 3]"]
    assert listed_moves("Your available actions are: '[check]', '[bet]'") == ["[check]", "[bet]"]
    assert othello_moves("Valid moves: '[2, 3]', '[3, 2]'") == ["[2, 3]", "[3, 2]"]
    assert othello_moves("Valid moves: '[2, 3]'\nNo valid moves – you may have to skip.") == ["[skip]"]


def test_boards_are_read_row_by_row() -> None:
    assert grid_cells(" 0 | O | 2 \n---+---+---\n 3 | X | 5 \n---+---+---\n 6 | 7 | 8 \n") == list(
        "0O23X5678"
    )
    small = "+----+----+\n| 0  | O  |\n+----+----+\n| X  | 3  |\n+----+----+"
    assert grid_cells(f"{small}\n{small.replace('0', 'X')}") == ["X", "O", "X", "3"]


def test_piles_and_columns_are_the_present_ones() -> None:
    text = "Current Pile:\n  pile 0: 3\n  pile 1: 1\nCurrent Pile:\n  pile 0: 2\n  pile 1: 0"
    assert nim_piles(text) == [2, 0]
    assert nim_moves(text) == ["[0 1]", "[0 2]"]
    board = "Board state:\n0 1 2\n-----\nX . .\nO . X"
    assert connect_four_rows(f"Board state:\n0 1 2\n-----\n. . .\n. . .\n{board}") == ["X..", "O.X"]
    assert connect_four_columns(board) == ["[col 1]", "[col 2]"]


@pytest.mark.parametrize("read", [listed_moves, grid_cells, nim_piles, connect_four_rows])
def test_an_unreadable_observation_is_quoted(read: object) -> None:
    assert callable(read)
    with pytest.raises(GameError, match=r"found 'Night falls\.'"):
        read("Night falls.")


async def test_a_position_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    env_id = "SimpleTak-v0-train"
    (first,) = await match(env_id, ["minimax-4", "first-legal"], 1)

    def search_again(*_: object) -> None:
        raise AssertionError("the same game was searched again")

    monkeypatch.setattr(TakBoard, "moves", search_again)
    (second,) = await match(env_id, ["minimax-4", "first-legal"], 1)
    assert second.seats == first.seats
