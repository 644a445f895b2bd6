"""The page of chance against chance: it says what the code does, and what it says of TextArena is so."""

import re
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.games.builders import begin
from tools.pages.chance import NO_LEGAL_MOVE, Row, family
from tools.pages.chance_games import GAMES, MAX_TURNS, ROWS, chance_games, read_rows
from unstable_stream.games.opponents.grammars import GRAMMARS
from unstable_stream.games.opponents.scripted import scripted_names

pytestmark = pytest.mark.longer

ROOT = Path(__file__).parents[2]
KEPT = read_rows(ROWS)

# Of each family the environment whose games are shortest: a second or two at most.
SHORTEST = {family(row.env_id): row for row in sorted(KEPT, key=lambda row: row.moves, reverse=True)}


@pytest.mark.parametrize(
    "row",
    [
        # A game of Catan is long even at its shortest.
        pytest.param(row, id=name, marks=[pytest.mark.long] if name == "SettlersOfCatan" else [])
        for name, row in SHORTEST.items()
    ],
)
def test_a_game_of_each_family_goes_as_its_row_says(row: Row) -> None:
    played = chance_games(row.env_id, row.players, 1)
    assert (played.invalid, played.unlike) == (0, 0)
    assert played.first == row.first, "play these games anew: python -m tools.pages.chance_games"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_game_of_each_environment_goes_as_its_row_says() -> None:
    for row in KEPT:
        played = chance_games(row.env_id, row.players, 1)
        assert (played.invalid, played.unlike, played.first) == (0, 0, row.first), row.env_id


def test_there_is_a_row_for_each_of_the_listed_environments() -> None:
    listed = (ROOT / "docs" / "reference" / "environments.md").read_text(encoding="utf-8")
    for_several = re.findall(r"^\| `(\S+)` \| [2-9] \|", listed, re.MULTILINE)
    assert [row.env_id for row in KEPT] == [env_id for env_id in for_several if scripted_names(env_id)]
    assert len(KEPT) >= 0.9 * len(for_several)
    assert set(GRAMMARS) <= SHORTEST.keys()


def test_two_hundred_games_of_each_without_an_invalid_move_or_another_replay() -> None:
    assert {(row.games, row.max_turns) for row in KEPT} == {(GAMES, MAX_TURNS)} == {(200, 200)}
    assert {(row.invalid, row.unlike) for row in KEPT} == {(0, 0)}
    assert {family(row.env_id) for row in KEPT if row.stuck} == set(NO_LEGAL_MOVE) == set(STUCK)


# -- positions without a legal move ------------------------------------------------------------------


def _squares(size: int) -> list[str]:
    return [f"{file}{rank}" for file in "abcdefgh"[:size] for rank in range(1, size + 1)]


# Family: environment, all that can be written there, moves.
STUCK: dict[str, tuple[str, list[str], str]] = {
    "Breakthrough": (
        "Breakthrough-v0-tiny-train",
        [f"[{start}{end}]" for start, end in product(_squares(5), repeat=2)],
        "[e2e3][d4d3][a2a3][d3c2][b1c2][d5d4][a3b4][c4c3][e1e2][c5c4][b2c3][a4a3][d2d3][d4e3][d3e4][a5a4]"
        "[a1a2]",
    ),
    "QuantumTicTacToe": (
        "QuantumTicTacToe-v0-train",
        [f"[{a},{b}]" for a, b in combinations(range(9), 2)],
        "[3,6][4,5][0,3][0,3][1,8][2,6][6,7][2,7][5,8][1,4]",
    ),
    "UltimateTicTacToe": (
        "UltimateTicTacToe-v0-train",
        [f"[{board} {square}]" for board, square in product(range(9), repeat=2)],
        "[3 8][8 8][8 0][0 6][6 3][3 1][1 4][4 0][0 7][7 5][5 2][2 5][5 4][4 1][1 2][2 1][1 3][3 3][3 7]"
        "[7 6][6 0][0 1][1 6][6 6][6 7][7 0][0 4][4 5][5 8][8 4][4 3][3 5][5 1][7 8][8 1][0 3][3 4][4 8][8 6]"
        "[6 1][3 0][0 5][5 6][6 5][8 3][7 1][7 2][2 4][4 2][2 7][7 4][4 4][6 2][0 2][7 7][7 3][6 8][6 4][0 0]"
        "[0 8]",
    ),
}


@pytest.mark.parametrize(("env_id", "actions", "moves"), STUCK.values(), ids=STUCK.keys())
def test_a_player_can_come_to_have_no_legal_move(env_id: str, actions: list[str], moves: str) -> None:
    environment = begin(env_id, seed=0)
    for move in re.findall(r"\[[^]]*\]", moves):
        assert move in actions
        assert environment.step(move).valid
    assert not environment.done
    assert not [action for action in actions if environment.accepts(action)]
