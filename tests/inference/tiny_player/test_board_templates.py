"""Prompts and actions checked by hand on what TextArena prints."""

import pytest

from tests.games.builders import observations
from unstable_stream.errors import GameError
from unstable_stream.games.board_templates import (
    BOARD_TEMPLATES,
    format_simpletak_board,
    format_tictactoe_board,
)
from unstable_stream.games.templates import extract_cell


def test_simpletak_shows_both_seats_their_symbol_and_the_board() -> None:
    (_, first), (seat, second), (_, third) = observations("SimpleTak-v0-train", "[5]", "[12]")
    assert format_simpletak_board(first) == "SimpleTak O\n0 1 2 3\n4 5 6 7\n8 9 10 11\n12 13 14 15\nmove:"
    assert seat == 1
    assert format_simpletak_board(second) == "SimpleTak X\n0 1 2 3\n4 O 6 7\n8 9 10 11\n12 13 14 15\nmove:"
    assert format_simpletak_board(third) == "SimpleTak O\n0 1 2 3\n4 O 6 7\n8 9 10 11\nX 13 14 15\nmove:"


def test_tictactoe_shows_both_seats_their_symbol_and_the_board() -> None:
    (_, first), (seat, second), (_, third) = observations("TicTacToe-v0-train", "[4]", "[0]")
    assert format_tictactoe_board(first) == "TicTacToe O\n0 1 2\n3 4 5\n6 7 8\nmove:"
    assert seat == 1
    assert format_tictactoe_board(second) == "TicTacToe X\n0 1 2\n3 O 5\n6 7 8\nmove:"
    assert format_tictactoe_board(third) == "TicTacToe O\nX 1 2\n3 O 5\n6 7 8\nmove:"


def test_the_last_board_is_the_present_one() -> None:
    (_, first), (_, second) = observations("SimpleTak-v0-train", "[5]")
    boards = first + "\n" + second[second.index("Current Board:") :]
    assert format_simpletak_board(boards).split("\n")[1:3] == ["0 1 2 3", "4 O 6 7"]


@pytest.mark.parametrize(
    ("template", "env_id"),
    [("simpletak-board", "TicTacToe-v0-train"), ("tictactoe-board", "SimpleTak-v0-train")],
)
def test_another_games_observation_is_refused(template: str, env_id: str) -> None:
    to_prompt = BOARD_TEMPLATES[template]
    [(_, observation)] = observations(env_id)
    with pytest.raises(GameError, match="use this template only for"):
        to_prompt(observation)


def test_a_larger_board_is_refused() -> None:
    [(_, observation)] = observations("SimpleTak-v0-medium-train")
    with pytest.raises(GameError, match="no 4x4 SimpleTak board"):
        format_simpletak_board(observation)


@pytest.mark.parametrize(
    ("completion", "action", "well_formed"),
    [
        ("[5]", "[5]", True),
        ("[15] [3]", "[15]", True),
        (" [ 7 ] ", "[7]", True),
        ("O [0]", "[0]", True),
        (" 7 ", "7", False),
        ("[x]", "[x]", False),
        ("", "", False),
    ],
)
def test_extraction(completion: str, action: str, well_formed: bool) -> None:
    assert extract_cell(completion) == (action, {"correct_answer_format": well_formed})
