"""Engines on Ray are closed, not only ended, however a run ends in order."""

import signal
from pathlib import Path

import pytest

from tests.whole_run import noting_engine
from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import LearnerUpdate, RunFinished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("interrupted", [False, True])
async def test_an_engine_is_closed_at_the_end(tmp_path: Path, *, interrupted: bool) -> None:
    notes = tmp_path / "notes.txt"
    run = LaunchedRun.train(
        tmp_path,
        f"engine={{type='{noting_engine.__file__}:Noting', notes='{notes}'}}",
        f"learner.iterations={100 if interrupted else 1}",
    )
    run.deadline_s = 600
    async with run:
        if interrupted:
            await run.until("the first update", lambda seen: bool(seen.of(LearnerUpdate)))
            run.launcher.send_signal(signal.SIGINT)
        assert await run.end() == (130 if interrupted else 0), run.told()
        outcome = "stopped" if interrupted else "completed"
        assert [end.outcome for end in run.history.of(RunFinished)] == [outcome]
        assert notes.read_text().splitlines() == ["started", "closed"]
        (logs,) = tmp_path.glob("logs/*")
        assert "not closed in order" not in (logs / "collector.log").read_text()
        assert run.left_behind() == []
