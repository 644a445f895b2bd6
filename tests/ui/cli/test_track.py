"""``track`` as a user meets it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import PROGRAM
from tests.ui.cli.test_consume_and_replay import directory as directory  # a fixture
from tests.ui.cli.test_consume_and_replay import run

pytestmark = pytest.mark.longer


def test_a_finished_run_goes_to_json_lines(directory: Path) -> None:
    first = run(directory, "track", "run-a", "--to", "jsonl", "--directory", "curves")
    assert (first.returncode, first.stdout) == (0, ""), first.stderr
    written = (directory / "curves" / "run-a" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert first.stderr == f"run-a: {len(written)} metrics events up to update 6; curves/run-a\n"
    again = run(directory, "track", "run-a", "--to", "jsonl", "--directory", "curves")
    assert again.stderr == (
        f"run-a: 0 metrics events up to update 6, {len(written)} were there before; curves/run-a\n"
    )


def test_wandb_that_only_writes_files_says_how_to_send_them(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(directory / name))
    monkeypatch.setenv("WANDB_MODE", "offline")
    # A process of its own: the package reads its environment once.
    track = [sys.executable, "-c", PROGRAM, "track", "run-a", "--to", "wandb", "--directory", "curves"]
    done = subprocess.run(track, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "wandb sync curves/run-a/wandb/offline-run-*" in done.stderr.replace("\n", "")


def test_help_has_an_example_and_mistakes_are_one_line(directory: Path) -> None:
    assert "Example: unstable-stream track" in " ".join(run(directory, "track", "--help").stdout.split())
    for arguments, says in (
        (("run-x", "--to", "jsonl"), "run-x"),
        (("run-a", "--to", "tensorbord"), "tensorbord"),
        (("run-a", "--to", "jsonl", "--source", "tape"), "expected log or archive"),
    ):
        wrong = run(directory, "track", *arguments)
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert wrong.stderr.startswith("error: ")
        assert len(wrong.stderr.splitlines()) == 1
        assert says in wrong.stderr
