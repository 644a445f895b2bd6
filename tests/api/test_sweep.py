"""A sweep of real runs: interrupted between two of them, it goes on; what it comes to, by hand."""

import asyncio
import json
import os
import signal
import threading
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import pytest

import unstable_stream as us
from tests.api.conftest import ENV
from tests.command_line import run_command
from unstable_stream.api.sweep import Sweep, SweepEnd, environments_of
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.runs.placement import Machine
from unstable_stream.ui.cli.sweeping import listed_grid

pytestmark = pytest.mark.longer

SMALL: dict[str, Any] = {
    "name": "small",
    "model": "tiny-player",
    "train_envs": [ENV],
    "backend": "inline",
    "max_tokens": 2,
    "num_workers": 4,
    "batch_size": 8,
    "mini_batch_size": 8,
    "iterations": 1,
    "evaluation_opponents": ["random-legal"],
    "max_eval_games_per_ckpt": 2,
}
RATES = [0.05, 1e-6]


def small(data: Path, seeds: list[int], rates: list[float] = RATES) -> Sweep:
    return us.sweep(seeds=seeds, grid={"learning_rate": rates}, data=data, **SMALL)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, list[str]]:
    """A sweep of two seeds and two rates that ended between its first two runs, and went on."""
    data = tmp_path_factory.mktemp("sweep")
    lines: list[str] = []

    class Killed(BaseException):
        pass

    def die(line: str) -> None:
        lines.append(line)
        if "completed" in line:
            raise Killed

    with pytest.raises(Killed):
        small(data, [0, 1]).start(jobs=1, report=die)
    sweep = small(data, [0, 1])
    assert [state for _, state, _ in sweep.planned()] == ["completed", *["to run"] * 3]
    end = sweep.start(jobs=1, report=lines.append)
    assert (end.ended, end.failed, end.worse, end.interrupted) == (4, (), {}, False)
    return sweep, lines


def test_runs_that_ended_are_left_and_the_others_follow(played: tuple[Sweep, list[str]]) -> None:
    sweep, lines = played
    begun = [line.partition(" begins")[0] for line in lines if "begins" in line]
    cells = [f"seed {seed}, learning_rate={rate}" for seed in (0, 1) for rate in ("0.05", "1e-06")]
    assert begun == [f"{number}/4 {cell}:" for number, cell in enumerate(cells, 1)]
    assert [run.state for run in sweep.runs] == ["completed"] * 4
    assert sweep.start(jobs=1, report=lines.append).ended == 4
    assert len(lines) == 8


def test_each_run_says_which_sweep_and_values_it_is_of(played: tuple[Sweep, list[str]]) -> None:
    sweep, _ = played
    config = sweep.runs[3].config
    assert (config.seed, config.learner.learning_rate) == (1, 1e-6)
    assert (config.sweep.name, config.sweep.varied) == (sweep.name, {"learner.learning_rate": 1e-6})
    asked = "SELECT varied, seed FROM runs WHERE sweep = $1 ORDER BY started_at"
    rows = us.sql(asked, [sweep.name], data=sweep.place.root)
    assert [(json.loads(varied), seed) for varied, seed in rows] == [
        ({"learner.learning_rate": rate}, seed) for seed in (0, 1) for rate in RATES
    ]
    assert us.build(config=config, data=sweep.place.root).config.sweep.name == ""
    assert sweep.runs[3].fork(iterations=2).config.sweep.name == ""


def test_results_are_the_means_of_what_the_runs_won(played: tuple[Sweep, list[str]]) -> None:
    sweep, _ = played
    won = "SELECT sum(wins) / sum(games) FROM win_rates WHERE split = 'eval' AND policy_version = 1"
    rates = [run.sql(won).rows()[0][0] for run in sweep.runs]
    results = sweep.results()
    assert [row.configuration for row in results] == ["learning_rate=0.05", "learning_rate=1e-06"]
    assert [row.by_seed for row in results] == [{0: rates[0], 1: rates[2]}, {0: rates[1], 1: rates[3]}]
    assert [row.won for row in results] == [fmean(rates[0::2]), fmean(rates[1::2])]


def test_a_sweep_is_compared_by_its_values_over_seeds(played: tuple[Sweep, list[str]]) -> None:
    sweep, _ = played
    table = us.compare(sweep.name, baseline=sweep.runs[1].id, data=sweep.place.root).table
    ids = [run.id for run in sweep.runs]
    assert [(row.group, row.runs) for row in table.groups] == [
        ("learning_rate=0.05", ids[0::2]),
        ("learning_rate=1e-06", ids[1::2]),
    ]
    assert table.baseline == "learning_rate=1e-06"
    results = {result.configuration: result for result in sweep.results()}
    for row in table.groups:
        (result,) = row.results
        said = results[row.group]
        assert (result.won, result.low, result.high) == pytest.approx((said.won, said.low, said.high))
        assert list(result.by_run.values()) == list(said.by_seed.values())
        assert row.spent["updates"] == 1
        assert row.rating is not None
        assert all(value is not None and value > 0 for value in row.spent.values())
    chart = us.compare(sweep.name, data=sweep.place.root).chart("tokens", "entropy")
    assert [len(line.x) for line in chart.series] == [1, 1]
    assert all(float(line.x[0]) > 0 for line in chart.series)


def test_the_command_prints_what_there_is(played: tuple[Sweep, list[str]], tmp_path: Path) -> None:
    """With the same settings it is the same sweep; of more seeds it says what would run, and how long."""
    sweep, _ = played
    base = us.build(data=tmp_path, **SMALL).config.model_dump(mode="json")
    lines = [f"{key} = {_toml(value)}" for key, value in base.items() if value is not None]
    (tmp_path / "small.toml").write_text("\n".join(lines))
    grid = "learner.learning_rate=0.05,1e-6"
    command = ["train", "small.toml", "--grid", grid, "--data", str(sweep.place.root)]
    done = run_command(*command, "--seeds", "0,1", cwd=tmp_path, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert f"sweep {sweep.name}: 4 runs, 4 of them have ended" in done.stdout
    assert "learning_rate=1e-06" in done.stdout
    assert f"curves: unstable-stream report {sweep.name}" in done.stdout
    planned = run_command(*command, "--seeds", "0,1,2", "--dry-run", cwd=tmp_path)
    assert planned.stdout.count("to run") == 2
    assert "a run took" in planned.stdout
    wrong = run_command(*command, "--seeds", "0,x", cwd=tmp_path)
    assert "expected whole numbers" in wrong.stderr
    assert "a sweep needs a configuration" in run_command("train", "--seeds", "0", cwd=tmp_path).stderr
    assert listed_grid(["algorithm.type=grpo, dapo"]) == {"algorithm.type": ["grpo", "dapo"]}


def _toml(value: object) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f'"{key}" = {_toml(each)}' for key, each in value.items() if each is not None)
        return "{" + inner + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)


def test_what_is_clearly_worse_gets_no_more_seeds_and_that_is_recorded(
    played: tuple[Sweep, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two seeds that ended are given results by hand; a third is not begun for the worse one.

    None and all of four games: Wilson's bounds are z²/(4 + z²) = 0.489891 and 4/(4 + z²) = 0.510109.
    """
    sweep, _ = played
    rates = dict(zip((run.id for run in sweep.runs), (0.0, 1.0, 0.0, 1.0), strict=True))
    monkeypatch.setattr("unstable_stream.api.sweep.final_rate", lambda view: (rates.get(view.run_id, 1.0), 2))
    lines: list[str] = []
    end = small(sweep.place.root, [0, 1, 2]).start(jobs=1, stop_worse=True, report=lines.append)
    assert set(end.worse) == {"learning_rate=0.05"}
    assert (
        "learning_rate=0.05 is stopped: it wins at most 49.0%, learning_rate=1e-06 at least 51.0%" in lines[0]
    )
    assert [line.partition(",")[0] for line in lines[1:]] == ["6/6 seed 2"] * 2
    recorded = "SELECT run_id, name, value FROM metrics WHERE source = 'sweep' ORDER BY name"
    assert us.sql(recorded, data=sweep.place.root).rows() == [
        (sweep.runs[2].id, "sweep/best-win-rate-low", pytest.approx(0.510109, abs=1e-6)),
        (sweep.runs[2].id, "sweep/stopped-after-seeds", 2.0),
        (sweep.runs[2].id, "sweep/win-rate-high", pytest.approx(0.489891, abs=1e-6)),
    ]


@pytest.mark.parametrize("notebook", [True, False])
def test_ctrl_c_stops_a_run_in_this_process(
    notebook: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also under an event loop, as of a notebook, where the run has a thread of its own.

    It has an object of this process, so it is played here however many cores there are.
    """

    def mine(observation: str) -> str:
        return "[0]"

    own = {"iterations": 1000, "evaluation_opponents": [], "opponents": [mine]}
    sweep = us.sweep(data=tmp_path, **SMALL | own)
    monkeypatch.setattr("unstable_stream.api.sweep.this_machine", lambda: Machine(cpus=16))
    with pytest.raises(ConfigError, match=r"mine.* is an object of this process.*use jobs=1"):
        sweep.start(jobs=2)
    lines: list[str] = []

    def interrupt() -> None:
        while not (tmp_path / "log.sqlite").exists() or not _recorded(tmp_path):
            threading.Event().wait(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    async def cell() -> SweepEnd:
        return sweep.start(report=lines.append)

    thread = threading.Thread(target=interrupt)
    thread.start()
    end = asyncio.run(cell()) if notebook else sweep.start(report=lines.append)
    thread.join()
    assert end == SweepEnd(0, (), {}, interrupted=True)
    assert [run.state for run in sweep.runs] == ["stopped"]
    assert len(lines) == (1 if notebook else 2)
    if not notebook:  # the run took the signal, and the sweep says why it ends
        assert f"the same again goes on with {sweep.runs[0].id}" in lines[1]
    orders: list[tuple[Any, ...]] = []
    monkeypatch.setattr("unstable_stream.api.sweep.run_one", lambda *order: orders.append(order))
    sweep.start(allow_code=["players:*"], report=lines.append)
    assert [order[-1] for order in orders] == [["players:*"]]


@pytest.mark.slow
def test_a_run_that_is_killed_in_its_process_is_resumed(tmp_path: Path) -> None:
    """One of two processes beside each other dies at its first word; meanwhile nobody else runs the sweep."""
    sweep = small(tmp_path, [0, 1], [1e-6])
    killed = threading.Event()
    refused: list[str] = []

    def kill(line: str) -> None:
        if "begins" in line and not killed.is_set():
            killed.set()
            threading.Thread(target=die_when_recorded).start()

    def die_when_recorded() -> None:
        while not (tmp_path / "log.sqlite").exists() or len(_recorded(tmp_path)) < 2:
            threading.Event().wait(0.1)  # both: a run that dies before it is recorded is begun anew
        try:
            small(tmp_path, [0, 1], [1e-6]).start(report=lambda line: None)
        except RunError as error:
            refused.append(str(error))
        first = next(iter(sweep._processes))
        os.kill(first.pid, signal.SIGKILL)

    end = sweep.start(jobs=2, report=kill)
    assert len(end.failed) == 1
    assert "is being run by another process" in refused[0]
    lines: list[str] = []
    with patch("unstable_stream.api.sweep._PROGRESS_S", 0.2):
        assert sweep.start(jobs=2, report=lines.append).ended == 2
    assert any(" of 1 updates after 0:" in line for line in lines), "it tells how far each run is"
    assert f"resumed, {end.failed[0]}" in lines[0]
    assert [run.audit().ok for run in sweep.runs] == [True, True]


def _recorded(data: Path) -> set[str]:
    return {run.run_id for run in us.list_runs(data)}


def test_runs_beside_each_other_share_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environments_of(2, 0) == [{}, {}]
    assert environments_of(1, 4) == [{}]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments_of(2, 4)] == ["0,2", "1,3"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments_of(3, 2)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments_of(2, 2)] == ["GPU-a", "GPU-b"]


def test_a_value_of_a_grid_makes_what_set_makes_of_it(tmp_path: Path) -> None:
    """The preset of the configuration is resolved anew; short forms are those of ``build``."""
    base = {"model": "tiny-player", "train_envs": [ENV], "algorithm": {"type": "grpo", "entropy_coef": 0.01}}
    types = ["reinforce", "dapo"]
    swept = us.sweep(base, grid={"algorithm.type": types}, data=tmp_path)
    single = [
        us.build(config=base, data=tmp_path, overrides=[f"algorithm.type={name}"]).config for name in types
    ]
    assert [(cell.algorithm, cell.rewards) for cell in swept._cells.values()] == [
        (config.algorithm, config.rewards) for config in single
    ]
    met = us.sweep(base, grid={"evaluation_opponents": [["random-legal"], "first-legal"]}, data=tmp_path)
    names = [[each.name for each in cell.evaluation.opponents] for cell in met._cells.values()]
    assert names == [["random-legal"], ["first-legal"]]


@pytest.mark.parametrize(
    ("seeds", "grid", "says"),
    [
        ([0, 1, 0], {}, "a value is there twice"),
        ([0], {"learning_rate": [1e-3, 1e-3]}, "a value is there twice"),
        ([0], {"learning_rate": [1e-3], "learner.learning_rate": [1e-4]}, "two names are of one key"),
        ([0], {"seed": [1, 2]}, "varied by seeds"),
        ([0], {"algorithm": [object()]}, "a value is a number"),
        ([0], {"learning_rat": [1, 2]}, r"did you mean learning_rate\?"),
        ([0], {"learner.rate": [1, 2]}, "^--grid learner.rate: unknown key 'learner.rate'"),
        ([0], {"learning_rate": [-1.0]}, "learner.learning_rate"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_anything_is_written(
    seeds: list[int], grid: dict[str, list[object]], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=says):
        us.sweep(seeds=seeds, grid=grid, data=tmp_path, **SMALL)
    assert not list(tmp_path.iterdir())
