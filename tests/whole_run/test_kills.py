"""kill -9 of every process of a run in its middle: it completes, nothing is lost, nothing is done twice."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.whole_run.processes import History, LaunchedRun
from unstable_stream.events import (
    Event,
    GameOutcome,
    LearnerUpdate,
    Rating,
    RecordRejected,
    RunFinished,
    Step,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

UPDATES = 16


VICTIMS = (
    ("service learner", "service archiver"),
    ("service collector", "service processors"),
    ("ray::EngineActor",),
    ("ray::RolloutActor",),
    ("ray::LearnerActor",),
)


def progress_beyond(history: History) -> Callable[[History], bool]:
    """Whether a game was finished and an update made since now."""
    games, updates = len(history.of(GameOutcome)), len(history.of(LearnerUpdate))
    return lambda seen: len(seen.of(GameOutcome)) > games and len(seen.of(LearnerUpdate)) > updates


async def test_a_run_outlives_the_death_of_each_of_its_processes(tmp_path: Path) -> None:
    async with LaunchedRun.train(tmp_path, f"learner.iterations={UPDATES}", "learner.save_every=2") as run:
        killed: list[int] = []
        for victims in VICTIMS:
            await run.until(f"progress before killing {victims}", progress_beyond(run.history))
            killed += [await run.kill(victim) for victim in victims]
        assert await run.end() == 0, run.told()
        assert len(set(killed)) == 7
        assert run.left_behind() == []
        ends = run.history.of(RunFinished)
        assert [(end.outcome, end.updates) for end in ends] == [("completed", UPDATES)]
        assert run.history.of(RecordRejected) == []
        assert {update.update for update in run.history.of(LearnerUpdate)} == set(range(1, UPDATES + 1))
        for kind in (Step, LearnerUpdate, Rating):
            assert_published_once(run.history.of(kind))
        rated = [r.games for r in run.history.of(Rating) if r.env_id != "*" and r.model_uid == "random-legal"]
        assert rated == list(range(1, len(rated) + 1))
        finished = {outcome.game_id for outcome in run.history.of(GameOutcome)}
        report = await run.command("audit", ends[0].run_id)
        assert (report.returncode, report.stderr) == (0, ""), report.stdout
        report = await run.command("verify", ends[0].run_id)
        assert (report.returncode, report.stderr) == (0, ""), report.stdout
        answer = await run.command("sql", "SELECT count(*) AS n FROM game_outcomes", "--csv")
        assert answer.stdout.split() == ["n", str(len(finished))]


def assert_published_once(events: list[Event]) -> None:
    """Their writers publish with positions or under a fenced producer, so not even redelivery is allowed."""
    ids = [event.event_id for event in events]
    assert len(ids) == len(set(ids)) > 0
