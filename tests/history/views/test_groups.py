"""Runs grouped by what differs in their configurations: names, means, remarks and curves by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.history.views.conftest import ATTACK
from tests.places import archived
from tests.runs.sweep_events import SWEEP, sweep_events
from unstable_stream.algorithms.improvement import better_by_games, better_by_runs
from unstable_stream.algorithms.intervals import rates_interval
from unstable_stream.errors import ConfigError
from unstable_stream.history.views.report import find_runs, write_report
from unstable_stream.history.views.report.groups import compare_groups, group_chart, group_runs
from unstable_stream.history.views.report.picture import svg_of
from unstable_stream.history.views.report.reading import RunFacts, labels_of, read_run
from unstable_stream.history.views.report.sections import build_sections


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archived(tmp_path_factory.mktemp("sweep"), sweep_events())


@pytest.fixture(scope="module")
def runs(archive: Path) -> list[RunFacts]:
    found = find_runs(archive, [SWEEP])
    labels = labels_of(archive, found)
    return [read_run(archive, run, label) for run, label in zip(found, labels, strict=True)]


def _changed(facts: RunFacts, name: str = "demo", **config: Any) -> RunFacts:
    """A run like this one, with other settings. ``Any``: JSON."""
    about = facts.about | {"sweep": None, "varied": None, "name": name}
    return replace(facts, about=about, config={**facts.config, "name": name, **config})


def test_seeds_are_one_group_and_values_of_a_sweep_name_others(runs: list[RunFacts]) -> None:
    assert {facts.label for facts in runs} >= {"seed 2, learning_rate=0.001"}
    groups = group_runs(runs)
    assert sorted((group.name, len(group.runs)) for group in groups) == [
        ("learning_rate=0.001", 3),
        ("learning_rate=0.5", 3),
    ]


def test_a_group_is_named_by_its_runs_or_else_by_what_differs(runs: list[RunFacts]) -> None:
    one = runs[0]
    slow = _changed(one, learner={"iterations": 1})
    assert [group.name for group in group_runs([_changed(one, "a"), _changed(one, "b")])] == ["a", "b"]
    assert [group.name for group in group_runs([_changed(one), slow])] == [
        "learning_rate=0.001",
        "learning_rate=not set",
    ]
    assert [group.name for group in group_runs([_changed(one, seed=8, note="x"), _changed(one)])] == ["demo"]
    long = _changed(one, opponents=["x" * 100], a=1, b=2, c=3)
    (name, other) = (group.name for group in group_runs([long, _changed(one)]))
    assert name == "a=1, b=2, c=3, 1 more"
    assert other == "a=not set, b=not set, c=not set, 1 more"
    # Single runs that differ in more than is said are themselves.
    labelled = [replace(long, label="run-1"), replace(_changed(one), label="run-2")]
    assert [group.name for group in group_runs(labelled)] == ["run-1", "run-2"]
    fork = replace(one, about=one.about | {"parent_run_id": "demo-0", "parent_update": 3, "sweep": None})
    assert [group.settings for group in group_runs([_changed(one), fork])][1] == {"forked from": '"demo-0@3"'}


def test_keys_that_are_named_alone_make_groups(runs: list[RunFacts]) -> None:
    some = [
        _changed(facts, facts.label, learner={"iterations": 1, "rate": rate})
        for facts in runs[:2]
        for rate in (1, 2)
    ]
    assert [(group.name, len(group.runs)) for group in group_runs(some, ["learner.rate"])] == [
        ("rate=1", 2),
        ("rate=2", 2),
    ]
    assert [group.name for group in group_runs(some, ["learner.iterations"])] == ["all runs"]
    with pytest.raises(ConfigError, match=r"no run has this key; did you mean learner.rate\?"):
        group_runs(some, ["learner.rates"])


def test_the_table_by_hand(runs: list[RunFacts]) -> None:
    """0.001 wins 3, 4 and 4 of five games at the end; 0.5 none, none and one, of which all lost are alike."""
    table = compare_groups(group_runs(runs), "learning_rate=0.5")
    (row,) = [row for row in table.groups if row.group == "learning_rate=0.001"]
    (result,) = row.results
    assert (result.env_id, result.opponent, result.update) == ("Env-v0", "random-legal", 1)
    assert (result.won, result.low, result.high) == rates_interval([0.6, 0.8, 0.8], 15)
    assert sorted(result.by_run.values()) == [0.6, 0.8, 0.8]
    assert result.better == better_by_runs([0.6, 0.8, 0.8], [0.0, 0.0, 0.2])
    assert result.better is not None
    assert result.better.probability == 1.0
    (base,) = [row for row in table.groups if row.group == table.baseline]
    assert base.results[0].better is None
    assert base.results[0].high == rates_interval([0.0, 0.0, 0.2], 1 + 1 + 5)[2], "five games are alike"
    assert (row.spent["games"], row.spent["updates"], row.rating) == (0, 0, None)
    assert any(line.startswith("demo-0.5-2 is lost") for line in table.sentences)
    with pytest.raises(ConfigError, match="the groups are 'learning_rate="):
        compare_groups(group_runs(runs), "learning_rate=7")


def test_two_single_runs_are_compared_by_their_games(runs: list[RunFacts]) -> None:
    one, other = (
        next(facts for facts in runs if facts.run_id == f"demo-{name}") for name in ("0.001-0", "0.5-2")
    )
    table = compare_groups(group_runs([other, one]))
    (result,) = table.groups[1].results
    assert result.better == better_by_games(3.0, 5, 1.0, 5)
    row = next(row for row in one.opponents if row["version"] == 1)
    assert (result.low, result.high) == (row["low"], row["high"]), "Wilson's"


def test_what_was_not_evaluated_alike_is_said(runs: list[RunFacts]) -> None:
    alone = compare_groups(group_runs(runs[:1]))
    assert len(alone.groups) == 1
    bare = _changed(replace(runs[0], run_id="bare", opponents=[]), "bare")
    moved = [row | {"env_id": "Other-v0"} for row in runs[0].opponents]
    elsewhere = _changed(replace(runs[0], run_id="elsewhere", opponents=moved), "elsewhere")
    table = compare_groups(group_runs([_changed(runs[0]), bare, elsewhere]))
    assert [len(row.results) for row in table.groups] == [1, 0, 1]
    assert [result.better for row in table.groups for result in row.results] == [None, None]
    assert "bare has no evaluation" in table.sentences
    assert "several environments, each compared on its own: Env-v0, Other-v0" in table.sentences
    assert any(line.startswith("elsewhere met nobody") for line in table.sentences)


def test_curves_are_means_over_runs_with_intervals(runs: list[RunFacts]) -> None:
    lines = {line.name: line for line in group_chart(group_runs(runs)).series}
    line = lines["learning_rate=0.001 · against random-legal"]
    assert (line.x, line.counts) == ([0, 1], [15, 15])
    mean, low, high = rates_interval([0.6, 0.8, 0.8], 15)
    assert (line.y[1], line.low and line.low[1], line.high and line.high[1]) == (mean, low, high)
    same = [facts for facts in runs if "0.001" in facts.label][:2]
    young = [row for row in same[1].opponents if row["version"] == 0]
    (line,) = group_chart(group_runs([same[0], replace(same[1], opponents=young)])).series
    assert line.low is not None
    assert (line.low[0] is None, line.low[1]) == (False, None), "a band needs a second seed"
    assert "By configuration" not in [section.title for section in build_sections(runs[:1])]


def test_curves_along_what_was_spent_and_of_other_metrics(runs: list[RunFacts]) -> None:
    same = [facts for facts in runs if "0.001" in facts.label][:2]
    spent = [
        replace(
            facts,
            clock=[
                {"update": 0, "games": 0, "seconds": 0.0},
                {"update": 1, "games": games, "seconds": 7200.0},
            ],
            updates=[{"model": None, "update": 1, "loss": 0.5, "metrics": {"entropy": games / 10}}],
        )
        for facts, games in zip(same, (10, 30), strict=True)
    ]
    groups = group_runs(spent)
    assert group_chart(groups, "games").series[0].x == [0, 20]
    assert group_chart(groups, "hours").series[0].x == [0, 2.0]
    (entropy,) = group_chart(groups, "updates", "entropy").series
    assert (entropy.x, entropy.y) == ([1], [2.0])
    assert entropy.high is not None
    assert entropy.high[0] == pytest.approx(2 + 12.706205 * (2**0.5) / 2**0.5), "3 and 1, so t times 1"
    with pytest.raises(ConfigError, match=r"no run has it; did you mean entropy\?"):
        group_chart(groups, "updates", "entropi")
    with pytest.raises(ConfigError, match="expected one of updates, games, tokens, seconds, hours"):
        group_chart(groups, "luck")


def test_a_picture_holds_the_lines_and_names_stay_text(runs: list[RunFacts]) -> None:
    hostile = [_changed(facts, ATTACK) for facts in runs[:1]]
    picture = svg_of(group_chart(group_runs([*hostile, _changed(runs[-1], "plain")])))
    assert "<script" not in picture
    assert picture.count("<polyline") == 2
    assert picture.count("<polygon") == 2
    assert ">100 %</text>" in picture
    assert svg_of(group_chart(group_runs([replace(runs[0], opponents=[])]))).count("<polyline") == 0


def test_the_report_has_the_table(runs: list[RunFacts], archive: Path, tmp_path: Path) -> None:
    write_report(archive, [facts.run_id for facts in runs], tmp_path / "report.html", samples=0)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<h1>Sweep {SWEEP}</h1>" in page
    assert "<h3>By configuration</h3>" in page
    assert "73.3 %" in page
    assert json.dumps("groups-win_rate") in page
