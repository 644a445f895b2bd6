"""Boards follow from the moves, and from the grids that a text shows."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from unstable_stream.games.openspiel.games import OpenSpielGame
from unstable_stream.games.opponents.legal_moves import listed_moves
from unstable_stream.history.views.boards import BoardPicture, board_now, boards_of, cards_of
from unstable_stream.history.views.transcript import TranscriptMove


def game(
    env_id: str, actions: Sequence[str], *, refused: Sequence[int] = (), sees: str = ""
) -> tuple[str, list[TranscriptMove]]:
    return env_id, [
        TranscriptMove(turn, turn % 2, action, turn not in refused, sees or None, None, None, None)
        for turn, action in enumerate(actions)
    ]


def drawn(env_id: str, moves: Sequence[TranscriptMove]) -> list[BoardPicture]:
    """Return the boards of a game, all of which are known."""
    boards = boards_of(env_id, moves)
    assert boards is not None
    known = [board for board in boards if board is not None]
    assert len(known) == len(moves)
    return known


def test_marks_go_where_the_moves_say() -> None:
    boards = drawn(*game("TicTacToe-v0-train", ["[4]", "[4]", "I take [0]"], refused=[1]))
    assert [board.last for board in boards] == [(4,), (), (0,)]
    assert boards[-1].cells == (0, None, None, None, 0, None, None, None, None)
    assert boards[-1].says().startswith("row 1: O, empty, empty; row 2: empty, O")


def test_discs_fall() -> None:
    says = "The game board has 5 rows and 4 columns."
    boards = drawn(*game("ConnectFour-v0", ["[col 3]", "[3]", "[col 0]"], sees=says))
    assert (boards[-1].rows, boards[-1].columns) == (5, 4)
    assert [board.last for board in boards] == [(19,), (15,), (16,)]


def test_the_size_is_read_from_the_board() -> None:
    sees = "+---+---+---+---+---+\n| 0 | 1 | 2 | 3 | 4 |\n+---+---+---+---+---+\n| 5 | O | 7 | 8 | 9 |\n"
    boards = drawn(*game("SimpleTak-v0-train", ["[6]", "[24]"], sees=sees))
    assert len(boards[-1].cells) == 25
    assert boards[-1].cells[24] == 1


def test_what_is_not_known_has_no_board() -> None:
    assert boards_of(*game("KuhnPoker-v0", ["[check]"])) is None
    assert boards_of(*game("TicTacToe-v0", ["[14]"])) is None
    assert boards_of(*game("TicTacToe-v0", ["[4]", "[4]"])) is None  # accepted by rules that are not these


def openspiel(name: str, **parameters: int) -> tuple[str, list[TranscriptMove]]:
    """Return a random game, both of whose players' texts are known."""
    pytest.importorskip("pyspiel")
    played, chance = OpenSpielGame(name, **parameters), random.Random(3)
    played.reset(2, seed=1)
    moves: list[TranscriptMove] = []
    while len(moves) < 60:
        seat, seen = played.get_observation()
        action = chance.choice(listed_moves(seen))
        moves.append(TranscriptMove(len(moves), seat, action, True, seen, None, None, None))
        if played.step(action)[0]:
            break
    return f"openspiel:{name}", moves


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("tic_tac_toe", {}),
        ("mnk", {"m": 5, "n": 4, "k": 4}),
        ("connect_four", {}),
        ("hex", {"board_size": 4}),
        ("gomoku", {}),
        ("breakthrough", {"rows": 6, "columns": 5}),
        ("clobber", {}),
        ("lines_of_action", {}),
    ],
)
def test_a_board_that_is_not_shown_follows_from_the_move(name: str, parameters: dict[str, int]) -> None:
    env_id, moves = openspiel(name, **parameters)
    shown = drawn(env_id, moves)
    followed = drawn(env_id, [moves[0], *(replace(move, observation=None) for move in moves[1:])])
    assert len(moves) > 4
    assert shown == followed
    for move, board in zip(moves, shown, strict=True):
        assert board.cells[board.last[-1]] == move.seat


@pytest.mark.parametrize("name", ["othello", "go"])
def test_where_a_move_changes_more_than_it_names_the_text_tells(name: str) -> None:
    env_id, moves = openspiel(name, **({"board_size": 5} if name == "go" else {}))
    shown = drawn(env_id, moves)
    assert [board.before for board in shown] == [False] * (len(moves) - 1) + [True]
    for move, board in zip(moves[1:], shown, strict=False):
        offered = listed_moves(move.observation or "")
        cells = [cell for each in offered for cell in board.called(each)]
        assert len(set(cells)) == len([each for each in offered if "pass" not in each.lower()])
        assert all(board.cells[cell] is None for cell in cells)


def test_the_number_of_a_move_is_as_good_as_its_name() -> None:
    env_id, moves = openspiel("tic_tac_toe")
    cell = drawn(env_id, moves)[0].last[0]
    again = drawn(env_id, [replace(moves[0], action=f"[{cell}]"), *moves[1:]])
    assert again == drawn(env_id, moves)


def test_the_first_board_of_a_game_that_is_played_is_empty() -> None:
    sees = "The game board has 5 rows and 4 columns."
    board = board_now("ConnectFour-v0", [], 0, sees)
    assert board is not None
    assert (board.rows, board.columns, set(board.cells)) == (5, 4, {None})
    assert board.called("[col 2]") == (18,)
    _, moves = game("ConnectFour-v0", ["[col 2]"])
    later = board_now("ConnectFour-v0", moves, 1, sees)
    assert later is not None
    assert later.last == (18,)
    assert later.called("[col 2]") == (14,)


@pytest.mark.parametrize("text", ["", "[[" * 50, "</svg><script>", "9" * 400, "\x1b[2J [٣]"])
def test_no_answer_is_too_odd(text: str) -> None:
    grid = f"What you know:\n...\n.x.\n...\n{text}"
    for env_id in (
        "TicTacToe-v0",
        "ConnectFour-v0",
        "openspiel:tic_tac_toe",
        "openspiel:go",
        "openspiel:none",
    ):
        for valid in (True, False):
            moves = [TranscriptMove(0, 0, text, valid, seen, None, None, None) for seen in (text, grid)]
            boards_of(env_id, moves)
            board_now(env_id, moves, 0, text)


def test_cards_are_read_from_the_texts_of_poker() -> None:
    _, moves = openspiel("leduc_poker")
    seen = cards_of(moves[-1].observation)
    assert seen["your"][0] in "JQK"
    assert cards_of("### Starting round 1. Your card is: 'K'\nYour card is: 'Q'") == {"your": "Q"}
    assert cards_of("Public card: none yet") == {}
    assert cards_of(None) == {}


_CHESS = """Current board:
   +-----------------+
 8 | r n b q k b n r |
 7 | p p p p . p p p |
 6 | . . . . . . . . |
 5 | . . . . p . . . |
 4 | . . . . P . . . |
 3 | . . . . . . . . |
 2 | P P P P . P P P |
 1 | R N B Q K B N R |
   +-----------------+
     a b c d e f g h
Valid moves: [g1h3], [g1f3]"""
_CHECKERS = """Current board:

     0  1  2  3  4  5  6  7
   +-------------------------
 0 | .  b  .  b  .  R  .  b
 1 | b  .  b  .  b  .  b  .
 2 | .  b  .  b  .  b  .  b
 3 | .  .  .  .  .  .  .  .
 4 | .  .  .  .  .  .  .  .
 5 | r  .  r  .  r  .  r  .
 6 | .  r  .  r  .  r  .  r
 7 | r  .  r  .  r  .  r  .
"""


def test_pieces_are_read_from_the_texts_of_textarena() -> None:
    # What the move did is not known before the next text; a board that was shown before is not the last one.
    (board,) = drawn(*game("Chess-v0-train", ["[g1f3]"], sees=_CHESS.replace("P", ".") + "\n" + _CHESS))
    assert [board.names[cell] for cell in board.last] == ["g1", "f3"]
    assert board.before
    assert board.says().startswith("row 1: black rook, black knight")
    assert board.cells[board.names.index("e4")] == 0
    # Its rows end with a blank.
    sees = _CHECKERS.replace("\n", " \n")
    (board,) = drawn(*game("Checkers-v0", ["[5 0 4 1]"], sees=sees))
    assert [divmod(cell, 8) for cell in board.last] == [(5, 0), (4, 1)]
    king = board.pieces[5]
    assert king is not None
    assert king.name == "seat 0's king"
    assert boards_of(*game("Chess-v0-blind", ["[e2e4]"])) is None


@pytest.mark.parametrize("name", ["chess", "checkers"])
def test_pieces_are_read_from_the_texts_of_openspiel(name: str) -> None:
    env_id, moves = openspiel(name)
    boards = drawn(env_id, moves)
    assert len(boards) == len(moves)
    assert sum(not board.before for board in boards) == len(boards) - 1, "each but the last has a next text"
    first = boards[0]
    (piece,) = {first.pieces[cell] for cell in first.last} - {None}
    assert piece is not None
    assert piece.seat == moves[0].seat
    assert sum(cell is not None for cell in first.cells) == (32 if name == "chess" else 24)
    at_move = board_now(env_id, [], moves[0].seat, moves[0].observation or "")
    assert at_move is not None
    assert at_move.says().count("empty") == (32 if name == "chess" else 40)
