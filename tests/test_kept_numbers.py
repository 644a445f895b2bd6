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
