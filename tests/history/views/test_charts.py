"""What is shown: the right numbers under the right names, thinned where there are too many."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from unstable_stream.algorithms.intervals import wilson_interval
from unstable_stream.history.views.report.charts import MOST_POINTS, Chart
from unstable_stream.history.views.report.players import MOST_MODELS
from unstable_stream.history.views.report.reading import RunFacts, read_run
from unstable_stream.history.views.report.sections import build_sections
from unstable_stream.model_pool.bradley_terry import bradley_terry


def _charts(*runs: RunFacts) -> dict[str, Chart]:
    charts = [chart for section in build_sections(runs) for chart in section.charts]
    assert len({chart.key for chart in charts}) == len(charts)
    return {chart.key: chart for chart in charts}


def test_win_rates_by_update(facts: RunFacts) -> None:
    (series,) = _charts(facts)["win-rate"].series
    assert series.name == "against random"
    assert list(series.x) == [0, 1, 2, 3, 4, 5, 6]
    assert list(series.y) == [0.0] + [0.5] * 6
    assert series.counts == [2] * 7


def test_the_distance_from_optimal_play_stands_beside_that_of_uniform_play(facts: RunFacts) -> None:
    chart = _charts(facts)["exploitability-0"]
    assert "openspiel:kuhn_poker" in chart.title
    assert [(series.name, list(series.x), list(series.y)) for series in chart.series] == [
        ("policy", [1], [0.5]),
        ("uniform play", [1], [0.9167]),
    ]
    assert "exploitability-1" not in _charts(facts), "what failed is no curve"


def test_what_was_not_measured_is_not_shown(facts: RunFacts) -> None:
    shown = _charts(facts)
    assert "gradient" in shown
    assert "entropy" not in shown


def test_several_runs_share_a_chart_and_are_told_apart(facts: RunFacts, archive: Path) -> None:
    charts = _charts(facts, read_run(archive, "run-b", "B"))
    loss = charts["loss"].series
    assert [(series.name, series.colour, list(series.x)) for series in loss] == [
        ("A", 0, [1, 2, 3, 4, 5, 6]),
        ("B", 1, [1, 2]),
    ]
    assert [charts[f"payoff-{run}"].title for run in (0, 1)] == ["Payoff matrix: A", "Payoff matrix: B"]
    assert {series.name for series in charts["reward"].series} >= {"A · raw", "B · step"}


def test_the_ladder_is_sorted_by_what_is_almost_sure(facts: RunFacts) -> None:
    (series,) = _charts(facts)["ladder-0"].series
    assert series.low is not None
    bottoms = [value for value in series.low if value is not None]
    assert bottoms == sorted(bottoms)
    assert series.x[-1] == "ckpt-000005"  # mu 25 + 5 + 6/8, sigma 8/7


def test_the_payoff_matrix_is_square_and_knows_who_never_met(facts: RunFacts) -> None:
    matrix = _charts(facts)["payoff-0"].matrix
    assert matrix is not None
    assert list(matrix.names) == ["random"] + [f"ckpt-{version:06d}" for version in range(7)]
    assert _charts(facts)["payoff-0"].kinds == {"random": "scripted"}, "opponents first, and marked"
    assert matrix.values[1][0] == pytest.approx(2.5 / 6)
    assert matrix.values[1][2] is None
    assert matrix.games[0][1] == 6
    assert matrix.bounds[1][0] == pytest.approx(wilson_interval(2.5, 6))
    assert matrix.bounds[1][2] is None


def test_a_long_run_is_thinned_to_its_ends(facts: RunFacts) -> None:
    updates = [{**facts.updates[0], "update": number, "loss": number / 10} for number in range(1, 5001)]
    charts = _charts(replace(facts, updates=updates))
    (loss,) = charts["loss"].series
    assert len(loss.x) == MOST_POINTS
    assert (loss.x[0], loss.x[-1], loss.y[-1]) == (1, 5000, 500.0)


def _long_run(facts: RunFacts) -> RunFacts:
    """200 checkpoints that each met three older ones, and an opponent that met every tenth; later is better,
    but for the last one.
    """
    names = [f"ckpt-{version:06d}" for version in range(200)]
    skill = {name: float(version) for version, name in enumerate(names)} | {names[-1]: -50.0, "random": -60.0}
    met = [(names[v], names[v - back]) for v in range(200) for back in (1, 7, 40) if v >= back]
    met += [(names[v], "random") for v in range(0, 200, 10)]
    independent = {"independent_score": 0.75, "independent_games": 4}
    payoff = [
        {"model_uid": one, "opponent": other, "games": 4, "score": 0.75} | independent
        for pair in met
        for one, other in (pair, pair[::-1])
    ]
    ladder = [
        {**facts.ladder[0], "env_id": facts.rated_env, "model_uid": name, "mu": mu, "sigma": 1.0}
        for name, mu in sorted(skill.items(), key=lambda item: -item[1])
    ]
    models = [{"model_uid": name, "kind": "checkpoint", "version": v} for v, name in enumerate(names)]
    models.append({"model_uid": "random", "kind": "scripted", "version": None})
    return replace(facts, models=models, ladder=ladder, payoff=payoff)


def test_of_many_models_the_best_the_newest_and_the_fixed_are_shown(facts: RunFacts) -> None:
    charts = _charts(_long_run(facts))
    best = [f"ckpt-{version:06d}" for version in range(198, 170, -1)]
    assert list(reversed(charts["ladder-0"].series[0].x)) == [*best, "ckpt-000199", "random"]
    matrix = charts["payoff-0"].matrix
    assert matrix is not None
    assert list(matrix.names) == ["random", *reversed(best), "ckpt-000199"], "checkpoints by age"
    filled = [sum(value is not None for value in row) for row in matrix.values]
    assert sum(filled) >= 2 * MOST_MODELS, "the best are neighbours, which met each other"
    for key in ("ladder-0", "payoff-0"):
        assert f"{MOST_MODELS} of 201 players are shown" in charts[key].says
        assert "players are shown" not in _charts(facts)[key].says


def test_who_met_none_of_those_shown_has_no_row_in_the_payoff_matrix(facts: RunFacts) -> None:
    run = _long_run(facts)
    met = [row for row in run.payoff if "random" not in row.values()]
    matrix = _charts(replace(run, payoff=met))["payoff-0"].matrix
    assert matrix is not None
    assert "random" not in matrix.names
    assert all(any(value is not None for value in row) for row in matrix.values)


def _met(*results: tuple[str, str, float]) -> list[dict[str, Any]]:
    """Return 100 games of each of these pairs, with the score of the first."""
    return [
        {"model_uid": one, "opponent": other, "games": 100, "score": won}
        | {"independent_score": won, "independent_games": 100}
        for a, b, score in results
        for one, other, won in ((a, b, score), (b, a, 1 - score))
    ]


def test_the_ladder_says_who_is_best_and_how_sure_and_names_cycles(facts: RunFacts) -> None:
    """The ratings are 30, 29, …, each with a deviation of 1: the first is ahead by 1 / sqrt(2) of one."""
    names = ["ckpt-000006", "random", "ckpt-000001", "ckpt-000002"]
    rated = [
        {**facts.ladder[0], "env_id": facts.rated_env, "model_uid": name, "mu": 30.0 - place, "sigma": 1.0}
        for place, name in enumerate(names)
    ]
    cycle = [
        ("ckpt-000006", "random", 0.62),
        ("random", "ckpt-000001", 0.7),
        ("ckpt-000001", "ckpt-000006", 0.65),
    ]
    chart = _charts(replace(facts, ladder=rated, payoff=_met(*cycle, ("ckpt-000002", "random", 0.5))))[
        "ladder-0"
    ]
    assert list(chart.told) == [
        "ckpt-000006 is first, stronger than random, the second, with probability 76.0 %.",
        "A cycle: ckpt-000001 beats ckpt-000006 (65.0 % of 100 games, 55.3 % to 73.6 %), which beats random "
        "(62.0 % of 100 games, 52.2 % to 70.9 %), which beats ckpt-000001 (70.0 % of 100 games, 60.4 % to "
        "78.1 %).",
        "2 of 6 pairs never met: ckpt-000006 and ckpt-000002, ckpt-000001 and ckpt-000002. Nothing is "
        "assumed about them.",
    ]
    assert chart.kinds == {"random": "scripted"}
    assert chart.more["ahead of the next"] == ["–", "76.0 %", "76.0 %", "76.0 %"]
    assert sum(float(share.removesuffix(" %")) for share in chart.more["alpha-rank"]) == pytest.approx(
        100, abs=0.2
    )


def test_a_tournament_is_ordered_by_the_strengths_of_all_results(facts: RunFacts) -> None:
    config = {**facts.config, "evaluation": {"round_robin": True}}
    results = [
        ("ckpt-000001", "random", 0.9),
        ("ckpt-000001", "ckpt-000002", 0.5),
        ("ckpt-000002", "random", 0.6),
    ]
    chart = _charts(replace(facts, config=config, payoff=_met(*results)))["ladder-0"]
    (series,) = chart.series
    wins = [[0.0, 50.0, 90.0], [50.0, 0.0, 60.0], [10.0, 40.0, 0.0]]
    expected = [strength.elo for strength in bradley_terry(wins)]
    assert dict(zip(series.x, series.y, strict=True)) == pytest.approx(
        dict(zip(["ckpt-000001", "ckpt-000002", "random"], expected, strict=True))
    )
    assert series.counts == [200, 200, 200]
    assert chart.x_title == "Elo points"
    assert not any("never met" in line for line in chart.told)


def test_an_infinite_loss_is_a_gap(facts: RunFacts) -> None:
    updates = [{**row, "loss": float("inf") if row["update"] == 2 else row["loss"]} for row in facts.updates]
    chart = _charts(replace(facts, updates=updates))["loss"]
    assert list(chart.series[0].y)[:3] == [1.0, None, 1 / 3]


def test_a_run_without_anything_has_no_charts(facts: RunFacts) -> None:
    nothing: dict[str, Any] = {each.name: () for each in fields(facts) if each.default == ()}
    assert build_sections([replace(facts, **nothing)]) == []
