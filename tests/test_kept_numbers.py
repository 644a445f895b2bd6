"""Tables of the docs that are made from numbers kept beside them are those of these numbers."""

import csv
from pathlib import Path

import pytest

from experiments import algorithms, exploitability
from unstable_stream.api.quickstart import QUICKSTART
from unstable_stream.games.openspiel.games import load_game
from unstable_stream.games.openspiel.solution import information_states
from unstable_stream.runs.config import parse_config, read_toml

DOCS = Path(__file__).parents[1] / "docs"


def test_every_algorithm_has_settings_that_a_run_takes_and_a_row() -> None:
    names = algorithms.SETTINGS
    assert len(names) == 8
    for name, changes in names.items():
        parse_config(read_toml(QUICKSTART), changes, origin=name)
    rows = algorithms.table().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| before any update", *(f"| {name}" for name in names)]


def test_a_share_is_that_of_the_games() -> None:
    """By hand from the file, for one run; whose row is not kept has a dash."""
    with (DOCS / "data" / "algorithms-evaluations.csv").open(encoding="utf-8", newline="") as file:
        (row,) = (
            row
            for row in csv.DictReader(file)
            if (row["run"], row["opponent"], row["update"]) == ("clipped, seed 0", "random-legal", "30")
        )
    share = f"{int(row['wins']) / int(row['games']):.3f}".removeprefix("0")
    assert f"| clipped | {share}, " in algorithms.table()
    assert algorithms.shares([0.5, None]) == ".500, –"


def test_tables_of_exploitability_have_a_line_for_each_seed() -> None:
    """A column for each update, and their mean; or one for each number of checkpoints that are mixed."""
    rows = [
        {"game": "kuhn_poker", "seed": str(seed), "update": str(update), "nash_conv": str(1 + seed - update)}
        for seed in range(3)
        for update in (0, 1)
    ]
    assert exploitability.table("kuhn_poker", rows).splitlines() == [
        "| Kuhn poker, update | 0 | 1 |",
        "|---|---|---|",
        "| seed 0 | 1.000 | .000 |",
        "| seed 1 | 2.000 | 1.000 |",
        "| seed 2 | 3.000 | 2.000 |",
        "| mean | 2.000 | 1.000 |",
    ]
    mixed = [
        {"game": "kuhn_poker", "seed": str(seed), "last": str(last), "nash_conv": str(seed + last / 100)}
        for seed in range(3)
        for last in (1, 5, 10, 41)
    ]
    assert exploitability.mixture_table(mixed).splitlines() == [
        "| Kuhn poker, NashConv | the last alone | one of the last 5 | of the last 10 | of all 41 |",
        "|---|---|---|---|---|",
        "| seed 0 | .010 | .050 | .100 | .410 |",
        "| seed 1 | 1.010 | 1.050 | 1.100 | 1.410 |",
        "| seed 2 | 2.010 | 2.050 | 2.100 | 2.410 |",
    ]


def test_who_has_drawn_a_policy_plays_it_where_it_leads() -> None:
    """Of always betting and always passing: who has passed and is bet against has drawn the second."""
    pytest.importorskip("pyspiel")
    game = load_game("kuhn_poker")
    states = information_states(game)
    passing, betting = ({state.key: {0: 1.0 - bet, 1: bet} for state in states} for bet in (0.0, 1.0))
    mixed = exploitability.mixture(game, [passing, betting])
    assert mixed["1"] == mixed["1p"] == mixed["1b"] == {0: 0.5, 1: 0.5}
    assert mixed["1pb"] == {0: 1.0, 1: 0.0}
    assert mixed.keys() == {state.key for state in states}
