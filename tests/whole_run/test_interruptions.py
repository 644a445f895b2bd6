"""A run stopped by Ctrl-C, then by its launcher's death, goes on where it was and plays the same games."""

import re
import signal
from pathlib import Path

import pytest

from tests.whole_run.conftest import UPDATES, FinishedRun
from tests.whole_run.processes import RAY_AGENTS, LaunchedRun
from unstable_stream.events import (
    Event,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    RunFinished,
    RunResumed,
    RunStarted,
    checkpoint_uid,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


async def test_ctrl_c_and_a_killed_launcher_then_the_same_evaluation_games(
    tmp_path: Path, finished_run: FinishedRun
) -> None:
    async with LaunchedRun.train(tmp_path, f"learner.iterations={UPDATES}") as first:
        await first.until("the first update", lambda seen: len(seen.of(LearnerUpdate)) >= 1)
        first.interrupt()
        assert await first.end() == 130, first.told()
        assert first.left_behind() == []
        run_id = first.history.of(RunStarted)[0].run_id
        told = first.stderr.read_text()
        assert f"unstable-stream train --resume {run_id} --data {tmp_path}" in told
        assert "Traceback" not in told
        (end,) = first.history.of(RunFinished)
        assert (end.outcome, end.updates) == ("stopped", len(first.history.of(LearnerUpdate)))
        assert end.updates < UPDATES, "the run was interrupted too late for this test to mean anything"

        async with LaunchedRun.resume(first, run_id) as second:
            await second.until("another update", lambda seen: len(seen.of(LearnerUpdate)) > end.updates)
            second.popen.send_signal(signal.SIGKILL)
            assert await second.end() == -signal.SIGKILL
            assert second.left_behind(*RAY_AGENTS) == []
            report = await second.command("audit", run_id)
            assert (report.returncode, report.stderr) == (0, ""), report.stdout
            report = await second.command("verify", run_id)
            assert (report.returncode, report.stderr) == (0, ""), report.stdout

        async with LaunchedRun.resume(first, run_id) as third:
            assert await third.end() == 0, third.told()
            assert third.left_behind() == []
        events = first.history.events
        assert [event.resumption for event in first.history.of(RunResumed)] == [1, 2]
        assert [e.outcome for e in first.history.of(RunFinished)] == ["stopped", "completed"]
        assert {update.update for update in first.history.of(LearnerUpdate)} == set(range(1, UPDATES + 1))
        report = await first.command("audit", run_id)
        assert (report.returncode, report.stderr) == (0, ""), report.stdout
        assert re.search(r"train games started.* \+ 0 in flight", report.stdout)
        report = await first.command("verify", run_id)
        assert (report.returncode, report.stderr) == (0, ""), report.stdout

    # Same seed, same evaluation games; and the initial policy, with the same seeds, makes the same moves.
    assert evaluation_plan(events) == evaluation_plan(finished_run.events)
    assert initial_moves(events) == initial_moves(finished_run.events)


def evaluation_plan(events: list[Event]) -> set[object]:
    return {
        (game.evaluated_uid, game.env_id, game.seed, tuple(seat.model_uid for seat in game.seats))
        for game in events
        if isinstance(game, GameStarted) and game.split == "eval"
    }


def initial_moves(events: list[Event]) -> dict[object, object]:
    return {
        (game.seed, tuple(seat.model_uid for seat in game.seats)): game.actions
        for game in events
        if isinstance(game, GameOutcome) and game.evaluated_uid == checkpoint_uid(0)
    }
