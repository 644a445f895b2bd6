"""A report about a sweep: curves and a table of means over seeds, by hand-worked numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.places import archived
from tests.runs.sweep_events import SWEEP, sweep_events
from unstable_stream.algorithms.intervals import rates_interval
from unstable_stream.history.views.report import find_runs, write_report
from unstable_stream.history.views.report.over_seeds import seeds_charts, seeds_results
from unstable_stream.history.views.report.reading import RunFacts, labels_of, read_run


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archived(tmp_path_factory.mktemp("sweep"), sweep_events())


@pytest.fixture(scope="module")
def runs(archive: Path) -> list[RunFacts]:
    found = find_runs(archive, [SWEEP])
    labels = labels_of(archive, found)
    return [read_run(archive, run, label) for run, label in zip(found, labels, strict=True)]


def test_a_sweep_is_named_as_a_run_is_and_its_runs_by_their_cells(runs: list[RunFacts]) -> None:
    assert len(runs) == 6
    assert "seed 2, learning_rate=0.001" in {facts.label for facts in runs}


def test_curves_are_means_over_seeds_with_intervals(runs: list[RunFacts]) -> None:
    evaluation = seeds_charts(runs)[0]
    line = next(each for each in evaluation.series if "0.001" in each.name)
    assert (line.name, line.x, line.counts) == (
        "learning_rate=0.001 · against random-legal",
        [0, 1],
        [15, 15],
    )
    mean, low, high = rates_interval([0.6, 0.8, 0.8], 15)
    assert (line.y[1], line.low and line.low[1], line.high and line.high[1]) == (mean, low, high)
    assert seeds_charts(runs[:1]) == []
    lost = next(each for each in evaluation.series if "0.5" in each.name)
    assert (lost.high or [])[1] == rates_interval([0.0, 0.0, 0.2], 1 + 1 + 5)[2], "five games are alike"


def test_two_sweeps_are_two(runs: list[RunFacts]) -> None:
    others = [replace(facts, about=facts.about | {"sweep": "other-1"}) for facts in runs]
    names = [f"{sweep} · learning_rate={rate}" for sweep in (SWEEP, "other-1") for rate in ("0.001", "0.5")]
    assert sorted(row.configuration for row in seeds_results([*runs, *others])) == names
    lines = seeds_charts([*runs, *others])[0].series
    assert sorted((line.name, line.counts) for line in lines) == [
        (f"{name} · against random-legal", [15, 15]) for name in names
    ]


def test_a_band_begins_where_a_second_seed_has_come(runs: list[RunFacts]) -> None:
    same = [facts for facts in runs if "0.001" in facts.label][:2]
    young = [row for row in same[1].opponents if row["version"] == 0]
    (line,) = seeds_charts([same[0], replace(same[1], opponents=young)])[0].series
    assert line.low is not None
    assert line.low[0] is not None
    assert line.low[1] is None


def test_the_table_counts_the_seeds_that_have_ended(
    runs: list[RunFacts], archive: Path, tmp_path: Path
) -> None:
    low, high = sorted(seeds_results(runs), key=lambda row: row.configuration)
    assert (low.before, low.won) == pytest.approx((0.2, 2.2 / 3))
    assert high.by_seed == {0: 0.0, 1: 0.0}
    assert high.high == rates_interval([0.0, 0.0], 1 + 1)[2], "the games of each seed are alike"
    write_report(archive, [facts.run_id for facts in runs], tmp_path / "report.html", samples=0)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"<h1>Sweep {SWEEP}</h1>" in page
    assert "<h3>Over seeds</h3>" in page
    assert "73.3 %" in page
