"""Search game trees for scripted opponents: exactly in small games, to a limited depth otherwise.

All positions are pairs of bit masks ``(own, other)`` from the point of view of the player to move. Every
function returns *all* moves it finds equally good, so that the caller may choose among them by chance.

Source of the search: negamax with alpha-beta pruning, Knuth and Moore, "An analysis of alpha-beta pruning",
Artificial Intelligence 6(4), 1975.
"""

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Final, Protocol

_WIN: Final = 1_000_000
_INFINITY: Final = 10 * _WIN


class Board(Protocol):
    """The rules and an estimate, for :func:`best_moves`."""

    def moves(self, own: int, other: int) -> Iterable[int]:
        """Bits that may be set, promising ones first; empty when the board is full."""

    def wins(self, stones: int) -> bool:
        """Return whether these stones have won."""

    def estimate(self, own: int, other: int) -> int:
        """Return the value of the position for the player to move; its size is well under 1,000,000."""


def best_moves(board: Board, own: int, other: int, depth: int) -> list[int]:
    """Return the moves (one bit each) that are best when looking ``depth`` moves ahead, ``depth >= 1``.

    Sooner wins and later losses are preferred. Scores are whole numbers, so a window one below the best
    score so far gives equal moves their exact scores.
    """
    best, chosen = -_INFINITY, list[int]()
    for move in board.moves(own, other):
        stones = own | move
        score = (
            _WIN + depth
            if board.wins(stones)
            else -_negamax(board, other, stones, depth - 1, -_INFINITY, -(best - 1))
        )
        if score > best:
            best, chosen = score, [move]
        elif score == best:
            chosen.append(move)
    return chosen


def _negamax(board: Board, own: int, other: int, depth: int, alpha: int, beta: int) -> int:
    if depth == 0:
        return board.estimate(own, other)
    best = -_INFINITY
    for move in board.moves(own, other):
        stones = own | move
        if board.wins(stones):
            return _WIN + depth
        score = -_negamax(board, other, stones, depth - 1, -beta, -max(alpha, best))
        if score > best:
            best = score
            if best >= beta:
                return best
    return 0 if best == -_INFINITY else best


# -- TicTacToe: solved ----------------------------------------------------------------------------

_LINES: Final = (0o007, 0o070, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124)


def tictactoe_best_moves(own: int, other: int) -> list[int]:
    """Return the cells (0 to 8) that keep the game's true value, winning soonest or losing latest.

    Bit ``i`` of the masks is cell ``i``. The whole tree has 5,478 positions, each searched once per process.
    """
    scored = [(_tictactoe_value(other, own | 1 << cell), cell) for cell in _free_cells(own | other)]
    worst = min(value for value, _ in scored)
    return [cell for value, cell in scored if value == worst]


@cache
def _tictactoe_value(own: int, other: int) -> int:
    """Value for the player to move: positive wins, larger is sooner."""
    free = _free_cells(own | other)
    if any(line & other == line for line in _LINES):
        return -1 - len(free)
    if not free:
        return 0
    return -min(_tictactoe_value(other, own | 1 << cell) for cell in free)


def _free_cells(taken: int) -> list[int]:
    return [cell for cell in range(9) if not taken >> cell & 1]


# -- Nim: solved ----------------------------------------------------------------------------------


def nim_best_moves(piles: Sequence[int]) -> list[tuple[int, int]]:
    """Return the best ``(pile, quantity)`` moves of normal play, where taking the last object wins.

    A move wins if it leaves piles whose exclusive-or is 0 (Bouton, "Nim, a game with a complete mathematical
    theory", Annals of Mathematics 3, 1901). If there is none, taking one object from a largest pile makes the
    opponent find the most moves.
    """
    total = 0
    for size in piles:
        total ^= size
    if total:
        return [(pile, size - (size ^ total)) for pile, size in enumerate(piles) if size ^ total < size]
    largest = max(piles)
    return [(pile, 1) for pile, size in enumerate(piles) if size == largest]


# -- Connect Four ---------------------------------------------------------------------------------


class ConnectFourBoard:
    """Connect Four of any size as a bit board: column after column from the bottom, one spare bit each.

    The spare bit on top of each column keeps lines from running on into the next column. The estimate
    counts, for each disc, the lines of four through its cell.
    """

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns = rows, columns
        self._height = rows + 1
        middle_first = sorted(range(columns), key=lambda column: abs(2 * column - columns + 1))
        self._columns = [
            (1 << column * self._height, (1 << rows) - 1 << column * self._height) for column in middle_first
        ]
        self._shifts = (1, self._height, self._height - 1, self._height + 1)
        self._layers = self._weight_layers()

    def bit(self, row_from_bottom: int, column: int) -> int:
        """Return the mask of one cell."""
        return 1 << column * self._height + row_from_bottom

    def column(self, move: int) -> int:
        """Return the column a move bit lies in."""
        return (move.bit_length() - 1) // self._height

    def moves(self, own: int, other: int) -> Iterable[int]:
        taken = own | other
        for bottom, column in self._columns:
            move = (taken + bottom) & column
            if move:
                yield move & ~taken

    def wins(self, stones: int) -> bool:
        for shift in self._shifts:
            pairs = stones & stones >> shift
            if pairs & pairs >> 2 * shift:
                return True
        return False

    def estimate(self, own: int, other: int) -> int:
        score = 0
        for weight, cells in self._layers:
            score += weight * ((own & cells).bit_count() - (other & cells).bit_count())
        return score

    def _weight_layers(self) -> list[tuple[int, int]]:
        """Cells by the number of possible fours through them: ``(number, mask)``."""
        counts: dict[int, int] = {}
        for row in range(self.rows):
            for column in range(self.columns):
                for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    line = [(row + down * i, column + right * i) for i in range(4)]
                    if all(0 <= r < self.rows and 0 <= c < self.columns for r, c in line):
                        for r, c in line:
                            counts[self.bit(r, c)] = counts.get(self.bit(r, c), 0) + 1
        masks: dict[int, int] = {}
        for cell, count in counts.items():
            masks[count] = masks.get(count, 0) | cell
        return sorted(masks.items())


# -- SimpleTak ------------------------------------------------------------------------------------


class TakBoard:
    """SimpleTak of any size: connect two opposite edges by stones that touch side to side.

    The estimate compares how many more stones each player needs for its shortest connection. Other orders
    of the same moves lead to the same stones, so it is kept, as is whether stones have won.
    """

    def __init__(self, size: int):
        self.size = size
        cells = size * size
        self._full = (1 << cells) - 1
        self._left = sum(1 << row * size for row in range(size))
        self._right = self._left << size - 1
        self._top = (1 << size) - 1
        self._bottom = self._top << cells - size
        middle = (size - 1) / 2
        self._order = [
            1 << cell
            for cell in sorted(
                range(cells), key=lambda cell: (cell // size - middle) ** 2 + (cell % size - middle) ** 2
            )
        ]
        self._won = lru_cache(maxsize=1 << 16)(self._joins_edges)
        self._need = lru_cache(maxsize=1 << 17)(self._weigh_distances)

    def moves(self, own: int, other: int) -> Iterable[int]:
        taken = own | other
        return [cell for cell in self._order if not cell & taken]

    def wins(self, stones: int) -> bool:
        return self._won(stones)

    def estimate(self, own: int, other: int) -> int:
        return self._need(other, own) - self._need(own, other) + 1

    def distances(self, own: int, other: int) -> tuple[int, int]:
        """Return how many stones a connection lacks, top to bottom and left to right.

        ``size + 2`` stands for everything longer, also for cut off.
        """
        open_cells = self._full & ~other
        return (
            self._distance(own, open_cells, self._top, self._bottom),
            self._distance(own, open_cells, self._left, self._right),
        )

    def _joins_edges(self, stones: int) -> bool:
        return self._connected(stones, self._top, self._bottom) or self._connected(
            stones, self._left, self._right
        )

    def _weigh_distances(self, own: int, other: int) -> int:
        """Weigh the shorter way three to one: a second threat is worth something, the first decides."""
        shorter, longer = sorted(self.distances(own, other))
        return 3 * shorter + longer

    def _spread(self, cells: int) -> int:
        """Return the cells and their four neighbours."""
        return (
            cells
            | (cells << self.size & self._full)
            | cells >> self.size
            | (cells & ~self._right) << 1
            | (cells & ~self._left) >> 1
        )

    def _connected(self, stones: int, start: int, goal: int) -> bool:
        if not (stones & start and stones & goal):
            return False
        return bool(self._flood(stones & start, stones) & goal)

    def _flood(self, cells: int, within: int) -> int:
        while True:
            grown = self._spread(cells) & within
            if grown == cells:
                return cells
            cells = grown

    def _distance(self, own: int, open_cells: int, start: int, goal: int) -> int:
        reached, border = self._flood(start & own, own), start
        for missing in range(self.size + 2):
            if reached & goal:
                return missing
            grown = (self._spread(reached) | border) & open_cells
            reached = self._flood(grown, grown | own)
        return self.size + 2
