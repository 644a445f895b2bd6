"""The notebook-style example runs as a script and says what the archive says."""

import subprocess
import sys
from pathlib import Path

from tests.archive.history import made_up_run, stored
from tests.processes import completed
from unstable_stream.archive import ArchiveWriter

_SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "analysis.py"


def _run(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return completed(sys.executable, _SCRIPT, *arguments)


def test_prints_what_happened_and_plots_it(tmp_path: Path) -> None:
    with ArchiveWriter(tmp_path / "archive.duckdb") as writer:
        writer.write(stored(made_up_run(updates=2)))
    page = tmp_path / "curve.html"
    done = _run(tmp_path, "--html", page)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    # Update, games, win rate, …: seat 0 wins from the first checkpoint on, seat 1 never.
    curve = [line[1:4] for line in lines if line[:1] == ["TicTacToe-v0-train"] and len(line) == 7]
    assert curve == [["0", "2", "0"], ["1", "2", "0.5"], ["2", "2", "0.5"]]
    # Update, steps, tokens, cut, stale, mean and largest ratio, KL: games 4 to 7 give 5, 6, 7; 6; 4, 5; 5
    # and a step that is dropped.
    assert ["2", "7", "5.429", "0", "0", "1.25", "2", "0.125"] in [line[:8] for line in lines]
    assert "Win rate of run-a" in page.read_text(encoding="utf-8")


def test_says_when_there_is_nothing(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path / "archive.duckdb").close()
    done = _run(tmp_path)
    assert (done.returncode, done.stderr) == (1, "no run in this archive yet\n")
