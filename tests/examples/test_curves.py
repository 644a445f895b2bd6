"""The tables of language-model.md and quickstart-recipe.md in docs/evidence are the counts in their data."""

import csv
import re
from pathlib import Path

import pytest

from unstable_stream.algorithms.intervals import wilson_interval

DOCS = Path(__file__).parents[2] / "docs"
RUNS = {
    "0": "the recipe",
    "1": "the recipe seed 1",
    "2": "the recipe seed 2",
    "0, transformers": "transformers engine",
}
OPPONENTS = ["random-legal", "first-legal", "win-or-block"]
LAST_UPDATE = 120
_CELL = re.compile(r"(\d?\.\d{3})(?: \[(\d?\.\d{3}), (\d?\.\d{3})\])?")


def rows(name: str) -> dict[tuple[str, int, str], tuple[int, int, str]]:
    """Return games, wins and draws by run, update and opponent."""
    with (DOCS / "data" / name).open(encoding="utf-8", newline="") as file:
        return {
            (row["run"], int(row["update"]), row["opponent"]): (
                int(row["games"]),
                int(row["wins"]),
                row["draws"],
            )
            for row in csv.DictReader(file)
        }


def is_rate(cell: str, wins: int, games: int) -> bool:
    """Whether a cell is this rate, with its 95 % interval if it has one."""
    found = _CELL.search(cell)
    assert found, cell
    rate, low, high = found.groups()
    expected = [wins / games, *wilson_interval(wins, games)]
    shown = [float(number) for number in (rate, low, high) if number is not None]
    return shown == pytest.approx(expected[: len(shown)], abs=5.1e-4)


def table_rows(head: str, page: str = "language-model.md") -> list[list[str]]:
    """Return the cells of the page's table whose first line begins with ``head``."""
    lines = (DOCS / "evidence" / page).read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(head))
    body = lines[start + 2 :]
    end = next(number for number, line in enumerate(body) if not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body[:end]]


def test_the_results_before_and_after_are_the_recorded_counts() -> None:
    data = rows("language-model-evaluations.csv")
    table = table_rows("| Seed | Against ")
    assert len(table) == len(RUNS) * len(OPPONENTS)
    for seed, opponent, _, before, after, drawn, _ in table:
        name = opponent.strip("`")
        games, wins, _ = data[RUNS[seed], 0, name]
        assert is_rate(before, wins, games), (seed, opponent)
        games, wins, draws = data[RUNS[seed], LAST_UPDATE, name]
        assert is_rate(after, wins, games), (seed, opponent)
        assert is_rate(drawn, int(draws), games), (seed, opponent)
        assert games >= 200


def test_the_points_between_are_the_recorded_counts() -> None:
    data = rows("language-model-evaluations.csv")
    table = table_rows("| Seed | Update ")
    assert len(table) == len(RUNS) * 3
    for seed, update, *cells in table:
        for opponent, cell in zip(OPPONENTS, cells, strict=True):
            games, wins, _ = data[RUNS[seed], int(update), opponent]
            assert is_rate(cell, wins, games), (seed, update, opponent)


def test_the_data_of_kuhn_poker_are_those_of_its_table() -> None:
    data = rows("smollm2-kuhnpoker-evaluations.csv")
    last = max(update for _, update, _ in data)
    page = (DOCS / "evidence" / "language-model.md").read_text(encoding="utf-8")
    lines = page.split("## A second game")[1].splitlines()
    for opponent in ("random-legal", "first-legal"):
        (line,) = [line for line in lines if line.startswith(f"| `{opponent}`")]
        before, after = [cell.strip() for cell in line.strip("|").split("|")][2:4]
        for cell, update in ((before, 0), (after, last)):
            games, wins, _ = data["seed 0", update, opponent]
            assert is_rate(cell, wins, games), (opponent, update)


def test_the_results_of_the_quickstart_are_its_counts() -> None:
    data = rows("quickstart-evaluations.csv")
    opponent = ""
    table = table_rows("| Against | Met | Seed |", "quickstart-recipe.md")
    for against, _, seed, before, after, drawn in table:
        opponent = against.split("`")[1] if against else opponent
        for update, won, drew in zip((0, LAST_UPDATE), (before, after), drawn.split(", "), strict=True):
            games, wins, draws = data[f"seed {seed}", update, opponent]
            assert is_rate(won, wins, games), (opponent, seed, update)
            assert is_rate(drew, int(draws), games), (opponent, seed, update)
    assert len(table) * 2 == len(data)


@pytest.mark.parametrize("first", ["perfect", "minimax-2"])
def test_the_results_of_an_hour_are_its_counts(first: str) -> None:
    data = rows("one-hour-evaluations.csv")
    table = table_rows(f"| Run | Update | `{first}`", "one-hour.md")
    assert len(table) >= 2
    for run, update, *cells in table:
        for opponent, cell in zip((first, "random-legal", "first-legal"), cells, strict=True):
            games, wins, draws = data[run, int(update), opponent]
            not_lost, won = cell.rsplit(", ", 1)
            assert is_rate(not_lost, wins + int(draws), games), (run, update, opponent)
            assert is_rate(won, wins, games), (run, update, opponent)
