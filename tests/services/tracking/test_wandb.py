"""What W&B's offline files say of a run that goes on, and of a fork."""

import time
from pathlib import Path

import pytest

from tests.services.tracking.wandb_file import history_of, numbered_rows
from unstable_stream.services.streams.trackers import Parent

wandb = pytest.importorskip("wandb")
pytestmark = pytest.mark.longer

Numbered = tuple[list[tuple[int, int]], list[tuple[str, int]]]
DEADLINE_S = 60.0


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / f"wandb-{name}"))


def log(directory: Path, *updates: int | None, parent: Parent | None = None) -> None:
    from unstable_stream.services.tracking.wandb import WandbTracker

    tracker = WandbTracker(str(directory), mode="offline", parent=parent)
    for place, update in enumerate(updates):
        values = {"learner/loss": 1.0 / (place + 1)}
        tracker.log(values, run_id=directory.name, source="learner", step=update, time_ms=1000 * place)
    tracker.close()


def written(directory: Path, wanted: Numbered) -> Numbered:
    """The rows and forks below a directory, once they are as wanted, which W&B may write a moment later."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := numbered_rows(directory)) != wanted and time.monotonic() < deadline:
        pass
    return found


def test_a_run_that_goes_on_numbers_its_rows_on(tmp_path: Path) -> None:
    log(tmp_path / "run", 1, 2, 3)
    log(tmp_path / "run", None, 5)
    rows = [(0, 1), (1, 2), (2, 3), (3, 3), (4, 5)]
    assert written(tmp_path, (rows, [])) == (rows, [])
    assert history_of(tmp_path)[0] == {("run", "unstable-stream")}


def test_a_fork_goes_on_from_the_row_of_its_update_and_once_only(tmp_path: Path) -> None:
    log(tmp_path / "a", 1, 2, 2, 3, 2)
    parent = Parent("a", 2, tmp_path / "a")
    log(tmp_path / "b", None, 3, 4, parent=parent)
    log(tmp_path / "b", 5, parent=parent)
    rows = [(3, 2), (4, 3), (5, 4), (6, 5)]
    forks = [("a", 2)]
    assert written(tmp_path / "b", (rows, forks)) == (rows, forks)


def test_a_fork_whose_parent_was_not_sent_begins_anew(tmp_path: Path) -> None:
    log(tmp_path / "b", None, parent=Parent("a", 2, tmp_path / "a"))
    assert written(tmp_path, ([(0, 2)], [])) == ([(0, 2)], [])
