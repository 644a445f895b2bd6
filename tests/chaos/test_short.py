"""A few faults that the other tests of whole runs do not do: ``make chaos`` does them by the thousand."""

from pathlib import Path

import pytest

from tests.chaos.faults import LAUNCHER_DIED
from tests.chaos.runs import KEY_ENV, do_faults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


async def test_a_run_goes_on_after_stopped_processes_and_a_killed_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_ENV, "none")
    report = await do_faults(3, tmp_path, seed=2, only=("stop", "launcher"))
    assert report.done == {"stop learner": 1, LAUNCHER_DIED: 1, "stop processors": 1}
    assert list(report.runs.values()) >= [1]
    assert report.endpoint, "the failing endpoint was never asked"
