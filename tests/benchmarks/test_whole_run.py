"""What the comparison of whole runs does without the ancestor: windows, processes, settings, table."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.environment import REQUIREMENTS as PEERS
from benchmarks.peers.environment import pins
from benchmarks.peers.whole_run import work
from benchmarks.peers.whole_run.ours import settings
from benchmarks.peers.whole_run.package import REQUIREMENTS
from benchmarks.peers.whole_run.processes import MARK, Processes
from benchmarks.peers.whole_run.side import SIDES, Snapshot, measured_of
from benchmarks.peers.whole_run.table import ANCESTOR, PAGE, RESULTS, page, table
from unstable_stream.runs.config import parse_config


def test_what_comes_after_the_first_update_is_measured() -> None:
    updates = [
        (Snapshot(110.0, {"learner": 5.0, "engine": 2.0}), 384),
        (Snapshot(112.0, {"learner": 6.0, "engine": 2.5}), 384),
        (Snapshot(115.0, {"learner": 7.0, "engine": 2.0, "ray": 0.5}), 200),
    ]
    game = Snapshot(104.5, {"learner": 3.0, "engine": 1.0})
    measured = measured_of(100.0, game, updates, [600, 1000, 1768], 2048.0, ["raylet"])
    assert (measured.first_game_s, measured.first_game_cpu_s) == (4.5, 4.0)
    assert (measured.steps, measured.seconds) == (584, 5.0)
    assert measured.cpu_s == {"learner": 2.0, "ray": 0.5}
    assert measured.played == 2.0
    assert (measured.memory_mb, measured.left) == (2048.0, ["raylet"])


def test_processes_are_known_by_their_mark_and_counted_after_their_end(tmp_path: Path) -> None:
    # The child starts a grandchild, which outlives it and is nobody's child then.
    grandchild = "import time; time.sleep(60)"
    code = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n"
        # More than is asked for: the system counts whole ticks of user and system time, and drops the rest.
        "while time.process_time() < 0.3: pass\n"
        "print('done', flush=True); sys.stdin.readline()"
    )
    processes = Processes("of this test")
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {MARK: "of this test"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        spent = processes.look().total()
        assert spent >= 0.2
        assert processes.memory_mb() > 1.0
    assert child.returncode == 0
    assert processes.look().total() >= spent
    assert Processes("of another").look().total() == 0.0
    began = time.monotonic()
    assert len(processes.end(wait_s=0.1)) == 1
    assert processes.end(wait_s=5.0) == []
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_our_side_does_the_work_that_is_asked_for(engine: str) -> None:
    config = parse_config(settings(work.Task(Path("marks"), 64, 6, engine)))
    assert config.engine.type == engine
    assert config.collector.num_workers == work.GAMES_IN_FLIGHT
    assert config.evaluation.opponents == ()
    assert (config.learner.batch_size, config.learner.mini_batch_size) == (work.BATCH_STEPS, 64)
    assert config.learner.iterations == 6


def test_both_learn_with_the_same_version_of_the_ancestor() -> None:
    peers = pins(PEERS)
    for package, version in pins(REQUIREMENTS).items():
        assert peers[package] == version


def _run(seconds: float, cpu_s: float, first_game_s: float = 10.0) -> dict[str, Any]:
    return {
        "first_game_s": first_game_s,
        "first_game_cpu_s": 2 * first_game_s,
        "steps": 1000,
        "seconds": seconds,
        "cpu_s": {"engine": cpu_s / 2, "learner": cpu_s / 2},
        "played": 1.25,
        "memory_mb": 2048.0,
        "left": [],
    }


def test_a_ratio_above_one_says_that_we_are_ahead() -> None:
    content = {
        "runs": {
            ANCESTOR: {"1": [_run(10.0, 8.0, 40.0), _run(20.0, 8.0, 40.0)], "64": [_run(10.0, 8.0, 20.0)]},
            "ours, vllm": {"1": [_run(5.0, 2.0), _run(5.0, 4.0)], "64": []},
        }
    }
    made = dict(line.strip("| \n").split(" | ", 1) for line in table(content).splitlines()[2:])
    assert made["CPU ms per trained step, micro-batch 1"] == (
        "8.00 | 3.00 (2.00 to 4.00): **2.67 x** (2.00 to 4.00)"
    )
    assert made["trained steps/s, micro-batch 1"] == "75 (50 to 100) | 200: **2.67 x** (2.00 to 4.00)"
    assert made["trained steps/s, micro-batch 64"] == "100"
    assert made["first game after, s"].startswith("40 (20 to 40) | 10: **4.00 x**")
    assert made["steps played for each one trained, micro-batch 1"] == "1.2 | 1.2"
    assert made["peak memory, GiB"] == "2.0 | 2.0: **1.00 x** (1.00 to 1.00)"


def test_the_page_has_the_kept_runs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: python -m benchmarks.peers.whole_run.table"
    content = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert list(content["runs"]) == list(SIDES)
    for by_size in content["runs"].values():
        for runs in by_size.values():
            assert runs
            assert all(run["left"] == [] for run in runs), "a side left processes behind"
