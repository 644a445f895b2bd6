"""``unstable-stream audit``: the books on stdout, what is wrong on stderr and in the status."""

import asyncio
from pathlib import Path

from typer.testing import CliRunner

from tests.history.proofs.test_audit import RUN, checkpoint, history
from unstable_stream.events import Event, Step
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.ui.cli import app


def write(directory: Path, events: list[Event]) -> None:
    async def append() -> None:
        async with LocalLog.open(directory / "log.sqlite", synchronous="NORMAL") as log:
            await log.create_topics(list(load_topics().values()))
            await log.append([record_from_event(event) for event in events])

    asyncio.run(append())


def test_a_whole_run_is_balanced(tmp_path: Path) -> None:
    write(tmp_path, history())
    result = CliRunner().invoke(app, ["audit", RUN[:5], "--data", str(tmp_path)])
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "train games started 4 = 3 finished + 1 abandoned + 0 in flight" in lines
    assert "steps produced 9 = 7 trained + 1 stale + 1 pending" in lines
    assert lines[-1] == "balanced"


def test_a_lost_step_is_told_with_its_place(tmp_path: Path) -> None:
    events = history()
    lost = next(event for event in events if isinstance(event, Step))
    write(tmp_path, [event for event in events if event is not lost])
    result = CliRunner().invoke(app, ["audit", RUN, "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert (
        f"unknown step consumed: learner-updates[0]@0: step {lost.event_id} is not in the log"
        in result.stderr
    )
    assert "3 problems" in result.stdout


def test_a_checkpoint_without_its_files_is_a_problem(tmp_path: Path) -> None:
    missing = checkpoint(2, str(tmp_path / "gone"), "0" * 64)
    write(tmp_path, [missing if event.event_id == missing.event_id else event for event in history()])
    result = CliRunner().invoke(app, ["audit", RUN, "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "checkpoint file missing: ckpt-000002: " in result.stderr
