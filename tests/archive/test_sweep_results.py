"""SQL about a sweep, and about games that repeat one another, by hand-worked numbers."""

from pathlib import Path

import pytest

from tests.builders import made
from tests.model_pool.outcomes import RUN, make_outcome
from tests.places import archived
from tests.runs.sweep_events import SWEEP, sweep_events
from unstable_stream.algorithms.intervals import rates_interval, wilson_interval
from unstable_stream.api.trained_on import read_training
from unstable_stream.archive import query
from unstable_stream.events import Checkpoint


def test_means_over_seeds(tmp_path: Path) -> None:
    archive = archived(tmp_path, sweep_events())
    rows = query(archive, "FROM sweep_results WHERE policy_version = 1 ORDER BY varied").dicts()
    first, second = rows
    assert (first["sweep"], first["varied"]) == (SWEEP, '{"learner.learning_rate":0.001}')
    assert (first["seeds"], first["games"]) == (3, 15)
    found = (first["win_rate"], first["win_rate_low"], first["win_rate_high"])
    assert found == pytest.approx(rates_interval([0.6, 0.8, 0.8], 15))
    assert second["seeds"] == 3
    found = (second["win_rate"], second["win_rate_low"], second["win_rate_high"])
    assert found == pytest.approx(rates_interval([0.0, 0.0, 0.2], 1 + 1 + 5)), "lost games are alike"
    assert query(archive, "SELECT count(*) FROM runs WHERE sweep = $1", [SWEEP]).rows == [(6,)]


def test_games_that_repeat_one_another_count_once_in_intervals(tmp_path: Path) -> None:
    """In seat 0 four games are one and the same, and won; in seat 1 three of six that differ."""
    policy, other = "ckpt-000001", "minimax-2"
    games = [
        make_outcome(
            index, {0: (policy, 1), 1: (other, -1)}, split="eval", evaluated_uid=policy, actions=["a", "b"]
        )
        for index in range(4)
    ] + [
        make_outcome(
            index,
            {0: (other, -won), 1: (policy, won)},
            split="eval",
            evaluated_uid=policy,
            actions=[str(index)],
        )
        for index, won in enumerate([1, 1, 1, -1, -1, -1], 4)
    ]
    checkpoint = made(Checkpoint, run_id=RUN, model_uid=policy, iteration=1, model=None)
    archive = archived(tmp_path, [*games, checkpoint])
    rows = query(
        archive, "SELECT games, wins, independent_games, win_rate_low FROM win_rates ORDER BY seat"
    ).rows
    assert rows == [
        (4, 4, 1, pytest.approx(wilson_interval(1, 1)[0])),
        (6, 3, 6, pytest.approx(wilson_interval(3, 6)[0])),
    ]
    expected = (pytest.approx(0.7), *map(pytest.approx, wilson_interval(4, 7)))
    for view in ("learning_curve", f"(FROM payoff_matrix WHERE model_uid = '{policy}')"):
        asked = f"SELECT win_rate, win_rate_low, win_rate_high FROM {view}"
        assert query(archive, asked).rows == [expected]
    (result,) = read_training(archive, RUN, checkpoint).results
    assert result.games == 10
    assert result.interval == pytest.approx(wilson_interval(4, 7))
