"""A sweep's name, its cells in words, means over its seeds, and the rule that stops what is clearly worse."""

import pytest

from tests.builders import made
from tests.model_pool.outcomes import make_outcome
from unstable_stream.events import RunStarted
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.history import RunStatus
from unstable_stream.runs.run_view import RunView
from unstable_stream.runs.sweeps import (
    Cell,
    FirstAndLast,
    clearly_worse,
    final_rate,
    is_over,
    over_seeds,
    sweep_name,
    varied_label,
)

TREE = {"name": "demo", "model": "tiny-player", "train_envs": [{"env_id": "Env-v0"}]}
LOW, HIGH = '{"learner.learning_rate": 0.001}', '{"learner.learning_rate": 0.5}'


def test_a_sweep_keeps_its_name_with_more_seeds_and_values_and_no_other_setting() -> None:
    base = parse_config(TREE)
    varied = ["learner.learning_rate"]
    name = sweep_name(base, varied)
    assert name.startswith("demo-")
    for same in ("seed=3", "learner.learning_rate=0.5", "metrics_port=9108", "log=kafka://h:1"):
        assert sweep_name(parse_config(TREE, [same]), varied) == name
    assert sweep_name(parse_config(TREE, ["learner.batch_size=64"]), varied) != name
    assert sweep_name(base, []) != name


def test_a_cell_is_read_from_what_its_run_recorded() -> None:
    config = {**TREE, "sweep": {"name": "demo-1", "varied": {"learner.learning_rate": 0.001}}}
    run = RunStatus("r", made(RunStarted, run_id="r", seed=4, config=config))
    cell = Cell.of(run, "demo-1")
    assert cell == Cell(4, LOW)
    assert cell.label == "seed 4, learning_rate=0.001"
    assert Cell.of(run, "demo-2") is None
    foreign = RunStatus("r", made(RunStarted, run_id="r", config={"sweep": "demo-1"}))
    assert Cell.of(foreign, "demo-1") is None


@pytest.mark.parametrize(
    ("varied", "words"),
    [
        ("{}", ""),
        ('{"algorithm.type": "ppo", "learner.batch_size": 64}', "type=ppo, batch_size=64"),
        ('{"algorithm.type": "ppo", "engine.type": "vllm"}', "algorithm.type=ppo, engine.type=vllm"),
        ("no JSON", "no JSON"),
        ("[1]", "[1]"),
    ],
)
def test_varied_keys_in_words(varied: str, words: str) -> None:
    assert varied_label(varied) == words


def test_means_over_seeds_by_hand() -> None:
    """0.6 and 0.8: mean 0.7, standard deviation 0.141421, t of one degree 12.706205, cut to 0 and 1."""
    met = ("Env-v0", "random-legal")
    results = over_seeds(
        {
            Cell(0, LOW): {met: FirstAndLast(1, 0.2, 0.6, 5)},
            Cell(0, HIGH): {met: FirstAndLast(1, 0.2, 0.0, 5)},
            Cell(1, LOW): {met: FirstAndLast(2, 0.4, 0.8, 5)},
        }
    )
    low, high = results
    assert (low.configuration, low.opponent, low.update) == ("learning_rate=0.001", "random-legal", 2)
    assert (low.before, low.won, low.low, low.high) == pytest.approx((0.3, 0.7, 0.0, 1.0))
    assert low.by_seed == {0: 0.6, 1: 0.8}
    assert (high.configuration, high.won, high.low, high.high) == ("learning_rate=0.5", 0.0, 0.0, 1.0)


def test_games_that_repeat_one_another_count_once() -> None:
    view = RunView("r", parse_config(TREE))
    policy = "ckpt-000001"
    for index, moves in enumerate(("a", "a", "a", "b", "c")):
        opponent = "minimax-2" if moves == "a" else "random-legal"
        seats = {0: (policy, 1.0), 1: (opponent, -1.0)}
        view.apply(
            make_outcome(index, seats, run_id="r", split="eval", actions=[moves], evaluated_uid=policy)
        )
    assert final_rate(view) == (1.0, 1 + 2)


def test_what_lies_below_the_best_is_clearly_worse_by_hand() -> None:
    """Half widths with three seeds are 4.302653 * sd / sqrt(3) = 2.484138 sd.

    ``best``: 0.70 with sd 0.02, from 0.650317. ``near``: 0.60 with sd 0.02, to 0.649683: below it.
    ``spread``: 0.60 with sd 0.03, to 0.674524: not. ``young`` has one seed. Wilson's of 29,997 games
    are narrower.
    """
    rates = {
        "near": [0.58, 0.60, 0.62],
        "best": [0.68, 0.70, 0.72],
        "spread": [0.57, 0.60, 0.63],
        "young": [0.01],
    }
    worse = clearly_worse({name: [(rate, 9999) for rate in each] for name, each in rates.items()})
    assert set(worse) == {"near"}
    near = worse["near"]
    assert near.best == "best"
    assert (near.high, near.best_low) == pytest.approx((0.649683, 0.650317), abs=1e-6)
    few = {"near": [(0.6, 5), (0.6, 5)], "best": [(0.8, 5), (0.8, 5)]}
    assert clearly_worse(few) == {}, "ten games do not tell 0.6 from 0.8, however alike the seeds are"
    assert clearly_worse({"young": [(0.1, 99)], "new": [(0.9, 99)]}) == {}


def test_a_run_that_a_collapse_stopped_is_over_and_one_that_a_person_stopped_is_not() -> None:
    assert is_over("completed", "2 updates")
    assert is_over("stopped", "on a sign of collapse: entropy fell")
    assert not is_over("stopped", "SIGINT")
    assert not is_over("failed", "out of memory")
