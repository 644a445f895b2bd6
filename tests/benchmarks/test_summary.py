"""The table of all ratios: what it reads, what it calls a change, and when it fails."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import Comparison, compare, report
from benchmarks.summary import Baseline, Measured, compared, fallen, read_results
from tests.processes import ROOT, completed


def _row(ratio: float, spread: float = 0.1, target: float | None = 0.5) -> Measured:
    return Measured("log_append", "append", ratio, ratio - spread, ratio + spread, target)


def test_a_benchmarks_results_are_read_with_their_targets(tmp_path: Path) -> None:
    rates = iter([8.0, 10.0, 6.0, 10.0, 5.0, 10.0])
    one = compare("append", lambda: next(rates), lambda: 10.0, unit="1/s", rounds=5, warmup=0, target=0.7)
    assert one.ours == (8.0, 10.0, 6.0, 10.0, 5.0)
    report("Log", [one, Comparison("read", "1/s", (1.0,), (2.0,))], tmp_path / "log_append.json")
    (tmp_path / "memory_plan.json").write_text(json.dumps([{"process": "learner"}]))
    rows, others = read_results(tmp_path)
    assert rows == [
        Measured("log_append", "append", 0.8, 0.5, 1.0, 0.7),
        Measured("log_append", "read", 0.5, 0.5, 0.5, None),
    ]
    assert [row.met for row in rows] == [True, None]
    assert others == ["memory_plan"]


@pytest.mark.parametrize(
    ("now", "then", "said"),
    [(1.0, None, "new"), (1.0, 0.9, "no change"), (1.0, 0.5, "better by 2.00"), (0.5, 1.0, "worse by 0.50")],
)
def test_a_change_is_one_only_beyond_the_rounds(now: float, then: float | None, said: str) -> None:
    assert said in compared(_row(now), None if then is None else _row(then))


def test_only_what_is_far_below_all_before_in_every_round_fails() -> None:
    def table(date: str, ratio: float) -> Baseline:
        return Baseline(date, {}, {("log_append", "append"): _row(ratio)})

    history = [table("2026-01-01", 1.0), table("2026-02-01", 2.0), Baseline("2026-03-01", {}, {})]
    assert fallen([_row(0.5)], history) == []
    assert fallen([_row(0.3)], history) == [_row(0.3)]  # its best round, 0.4, is below half of 0.9
    assert fallen([_row(0.3)], []) == []


def test_a_kept_table_is_compared_with(tmp_path: Path) -> None:
    results, kept = tmp_path / "results", tmp_path / "baselines" / "2026-01-01.json"
    results.mkdir()

    def summary(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return completed(sys.executable, "-m", "benchmarks.summary", results, *arguments, cwd=ROOT)

    report("Log", [Comparison("append", "1/s", (9.0,), (10.0,), 0.5)], results / "log_append.json")
    saved = summary("--save", str(kept))
    assert "1 of 1 targets met" in saved.stdout, saved.stderr
    assert Baseline.load(kept).rows["log_append", "append"].ratio == 0.9
    report("Log", [Comparison("append", "1/s", (2.0,), (10.0,), 0.5)], results / "log_append.json")
    worse = summary("--against", str(kept.parent), "--strict")
    assert worse.returncode == 1
    assert "far below all before: log_append, append" in worse.stdout
    assert f"{Baseline.load(kept).date} 0.90, worse by 0.22" in worse.stdout
    assert "0 of 1 targets met" in worse.stdout
