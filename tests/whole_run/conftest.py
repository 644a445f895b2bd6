"""One finished run that several tests look at."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import Event, GameOutcome, LearnerUpdate

UPDATES = 4

EventT = TypeVar("EventT", bound=Event)


@dataclass(frozen=True)
class FinishedRun:
    """What is known once the run is over."""

    data: Path
    run_id: str
    status: int
    events: list[Event]
    stdout: str
    stderr: str
    left_behind: list[str]
    rows_while_running: int
    """Finished games the archive knew of during the run."""

    def of(self, kind: type[EventT]) -> list[EventT]:
        """Events of one type."""
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A whole run through the command line: launcher, services, Ray, engine, learner, archive."""
    return asyncio.run(_run(tmp_path_factory.mktemp("run")))


async def _run(data: Path) -> FinishedRun:
    async with LaunchedRun.train(data, f"learner.iterations={UPDATES}") as run:
        await run.until("the first update", lambda seen: bool(seen.of(LearnerUpdate)))
        query = "SELECT count(*) AS games FROM game_outcomes"
        answer = await run.command("sql", query, "--json")
        assert answer.returncode == 0, answer.stderr
        status = await run.end()
        return FinishedRun(
            data=data,
            run_id=run.history.of(GameOutcome)[0].run_id,
            status=status,
            events=run.history.events,
            stdout=run.stdout.read_text(),
            stderr=run.stderr.read_text(),
            left_behind=run.left_behind(),
            rows_while_running=_games(answer.stdout),
        )


def _games(text: str) -> int:
    row = json.loads(text)[0] if text.lstrip().startswith("[") else json.loads(text.splitlines()[0])
    games = row["games"]
    assert isinstance(games, int)
    return games
