"""A few faults that the other tests of whole runs do not do: ``make chaos`` does them by the thousand."""

from pathlib import Path

import pytest

from tests.chaos.campaign import do_faults
from tests.chaos.faults import CONTROL_ENV, LAUNCHER_DIED, NEVER_RETURNS
from tests.chaos.runs import KEY_ENV
from tests.chaos.table import lines, read_results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


KEY = "sk-chaos-0123456789abcdef"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the campaign sets for its processes is this test's only."""
    monkeypatch.setenv(KEY_ENV, KEY)
    monkeypatch.setenv(CONTROL_ENV, "")
    monkeypatch.setenv("PYTHONPATH", "")


@pytest.mark.long
async def test_a_run_goes_on_after_stopped_processes_and_a_killed_launcher(tmp_path: Path) -> None:
    (run,) = await do_faults(
        3, tmp_path / "results", tmp_path, seed=2, only=("stop", LAUNCHER_DIED), updates=8
    )
    assert run.failure == ""
    assert run.done.total() == 3
    assert run.updates >= 1
    assert run.endpoint, "the failing endpoint was never asked"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


async def test_a_run_goes_on_after_kills_at_commit_steps_and_garbage_and_so_does_the_campaign(
    tmp_path: Path,
) -> None:
    faults = ("commit step", "engine: not finite", "engine: unknown", "environment: raises")
    results = tmp_path / "results"
    for wanted in (2, 5):
        work = tmp_path / str(wanted)
        runs = await do_faults(wanted, results, work, backend="inline", only=faults, seed=4, updates=8)
    assert [(run.seed, run.failure) for run in runs] == [(4 + number, "") for number in range(len(runs))]
    assert len(runs) >= 2
    assert sum(run.steps.total() for run in runs) >= 1
    table = "\n".join(lines(read_results(results)))
    assert f"5 faults in {len(runs)} runs" in table
    assert "kill -9 at a commit step of the run" in table


@pytest.mark.long
@pytest.mark.parametrize("backend", ["inline", "ray"])
async def test_a_run_goes_on_after_an_environment_that_never_returns(tmp_path: Path, backend: str) -> None:
    """The game is abandoned, which the fault waits for; a run that is one process ends, and is resumed."""
    (run,) = await do_faults(
        1, tmp_path / "results", tmp_path, backend=backend, only=(NEVER_RETURNS,), seed=5, updates=20
    )
    assert run.failure == ""
    assert run.done == {NEVER_RETURNS: 1}
    assert run.ended == ({NEVER_RETURNS: 1} if backend == "inline" else {})
    assert run.recovered_s[NEVER_RETURNS], "no update came after it"
