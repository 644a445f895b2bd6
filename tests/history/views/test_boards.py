"""Boards follow from the moves."""

from collections.abc import Sequence

from unstable_stream.history.views.boards import boards_of
from unstable_stream.history.views.transcript import Transcript, TranscriptMove


def game(env_id: str, actions: Sequence[str], *, refused: Sequence[int] = (), sees: str = "") -> Transcript:
    moves = [
        TranscriptMove(turn, turn % 2, action, turn not in refused, sees or None, None, None, None)
        for turn, action in enumerate(actions)
    ]
    return Transcript("g", "r", "finished", "train", 0, env_id, 1, *(None,) * 6, (), moves)


def test_marks_go_where_the_moves_say() -> None:
    boards = boards_of(game("TicTacToe-v0-train", ["[4]", "[4]", "I take [0]"], refused=[1]))
    assert boards is not None
    assert [board.last for board in boards] == [4, None, 0]
    assert boards[-1].cells == (0, None, None, None, 0, None, None, None, None)
    assert boards[-1].says().startswith("row 1: O, empty, empty; row 2: empty, O")


def test_discs_fall() -> None:
    says = "The game board has 5 rows and 4 columns."
    boards = boards_of(game("ConnectFour-v0", ["[col 3]", "[3]", "[col 0]"], sees=says))
    assert boards is not None
    assert (boards[-1].rows, boards[-1].columns) == (5, 4)
    assert [board.last for board in boards] == [19, 15, 16]


def test_the_size_is_read_from_the_board() -> None:
    sees = "+---+---+---+---+---+\n| 0 | 1 | 2 | 3 | 4 |\n+---+---+---+---+---+\n| 5 | O | 7 | 8 | 9 |\n"
    boards = boards_of(game("SimpleTak-v0-train", ["[6]", "[24]"], sees=sees))
    assert boards is not None
    assert len(boards[-1].cells) == 25
    assert boards[-1].cells[24] == 1


def test_what_is_not_known_has_no_board() -> None:
    assert boards_of(game("KuhnPoker-v0", ["[check]"])) is None
    assert boards_of(game("TicTacToe-v0", ["[4]", "[4]"])) is None  # accepted by rules that are not these
