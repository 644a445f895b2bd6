"""Search against slow, obvious versions of itself, and against positions worked out by hand."""

import random
from functools import cache

import pytest

from unstable_stream.games.opponents.search import (
    Board,
    ConnectFourBoard,
    TakBoard,
    best_moves,
    nim_best_moves,
    tictactoe_best_moves,
)


def plain_values(board: Board, own: int, other: int, depth: int) -> dict[int, int]:
    """Negamax without pruning, by move: the definition."""

    def value(stones: int) -> int:
        if board.wins(stones):
            return 1_000_000 + depth
        if depth == 1:
            return -board.estimate(other, stones)
        return -max(plain_values(board, other, stones, depth - 1).values(), default=0)

    return {move: value(own | move) for move in board.moves(own, other)}


def random_position(board: Board, moves: int, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    own = other = 0
    for _ in range(moves):
        choices = list(board.moves(own, other))
        if not choices or board.wins(own) or board.wins(other):
            break
        own, other = other, own | rng.choice(choices)
    return own, other


@pytest.mark.parametrize(
    "board", [TakBoard(3), TakBoard(4), ConnectFourBoard(4, 4)], ids=["tak-3", "tak-4", "connect-four-4"]
)
def test_pruning_changes_nothing(board: Board) -> None:
    for seed in range(12):
        own, other = random_position(board, 4 + seed % 5, seed)
        if board.wins(own) or board.wins(other):
            continue
        for depth in (1, 2, 3):
            found = best_moves(board, own, other, depth)
            values = plain_values(board, own, other, depth)
            assert set(found) == {move for move, value in values.items() if value == max(values.values())}
            assert len(found) == len(set(found))


def tak(rows: str) -> tuple[int, int]:
    """``O`` is to move; rows separated by spaces."""
    cells = rows.replace(" ", "")
    return (
        sum(1 << i for i, c in enumerate(cells) if c == "O"),
        sum(1 << i for i, c in enumerate(cells) if c == "X"),
    )


@pytest.mark.parametrize(
    ("rows", "vertical", "horizontal"),
    [
        (".... .... .... ....", 4, 4),
        ("O... O... .... O...", 1, 3),
        ("OOOO .... .... ....", 3, 0),
        ("XXXX .... .... ....", 6, 4),  # cut off top to bottom
        ("X... .X.. ..X. ...X", 6, 6),  # stones meet side to side only, so a diagonal cuts both ways
        (".X.. .X.. .... ....", 4, 4),
    ],
)
def test_tak_distances(rows: str, vertical: int, horizontal: int) -> None:
    own, other = tak(rows)
    board = TakBoard(4)
    assert board.distances(own, other) == (vertical, horizontal)
    assert board.wins(own) == (0 in (vertical, horizontal))


def test_tak_wins_now_and_stops_a_win() -> None:
    board = TakBoard(4)
    own, other = tak("O... O... O... .XXX")
    assert best_moves(board, own, other, 2) == [1 << 12]
    own, other = tak("X... X... X... ....")  # must block in cell 12
    assert best_moves(board, own, other, 2) == [1 << 12]


@pytest.mark.parametrize(
    ("discs", "won"),
    [
        ([(0, 0), (0, 1), (0, 2), (0, 3)], True),
        ([(0, 0), (1, 0), (2, 0), (3, 0)], True),
        ([(0, 0), (1, 1), (2, 2), (3, 3)], True),
        ([(3, 0), (2, 1), (1, 2), (0, 3)], True),
        ([(0, 0), (0, 1), (0, 2), (0, 4)], False),
        ([(4, 0), (5, 0), (0, 1), (1, 1)], False),  # a column does not run on into the next
        ([(5, 0), (0, 2), (1, 3), (2, 4)], False),
    ],
)
def test_connect_four_lines(discs: list[tuple[int, int]], won: bool) -> None:
    board = ConnectFourBoard(6, 7)
    assert board.wins(sum(board.bit(row, column) for row, column in discs)) is won


def test_connect_four_takes_and_denies_wins() -> None:
    board = ConnectFourBoard(6, 7)
    three = sum(board.bit(0, column) for column in (0, 1, 2))
    elsewhere = sum(board.bit(row, 6) for row in range(3))
    assert [board.column(move) for move in best_moves(board, three, elsewhere, 2)] == [3]
    assert [board.column(move) for move in best_moves(board, board.bit(0, 5), three, 2)] == [3]


def test_connect_four_moves_fall_down_and_columns_fill_up() -> None:
    board = ConnectFourBoard(2, 3)
    taken = board.bit(0, 1) | board.bit(1, 1) | board.bit(0, 2)
    assert sorted(board.column(move) for move in board.moves(taken, 0)) == [0, 2]
    assert board.bit(1, 2) in board.moves(taken, 0)


def test_tictactoe_prefers_the_quickest_win() -> None:
    # X X . / O O . / . . .  with X to move: 2 wins at once.
    assert tictactoe_best_moves(0b000_000_011, 0b000_011_000) == [2]
    # With O to move, 5 wins at once, though 2 also keeps the game.
    assert tictactoe_best_moves(0b000_011_000, 0b000_000_011) == [5]


@cache
def nim_wins(piles: tuple[int, ...]) -> bool:
    """Whether the player to move wins normal play, by trying everything."""
    return any(
        not nim_wins((*piles[:i], piles[i] - take, *piles[i + 1 :]))
        for i in range(len(piles))
        for take in range(1, piles[i] + 1)
    )


def test_nim_moves_win_whenever_a_win_exists() -> None:
    for piles in [(a, b, c) for a in range(5) for b in range(5) for c in range(5) if a + b + c]:
        moves = nim_best_moves(piles)
        assert moves
        for pile, take in moves:
            assert 1 <= take <= piles[pile]
            left = (*piles[:pile], piles[pile] - take, *piles[pile + 1 :])
            assert nim_wins(left) == (not nim_wins(piles))
