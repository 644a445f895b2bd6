"""A whole run, started as a person would: it does what it says and everything adds up.

It is forked, and held against one that was interrupted.
"""

import asyncio
import json
import re
import shutil
import signal
from collections import Counter, defaultdict
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests import command_line
from tests.whole_run.processes import LaunchedRun, run_command
from unstable_stream.events import (
    Checkpoint,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Rating,
    RecordRejected,
    RunFinished,
    RunResumed,
    RunStarted,
    Step,
    Trajectory,
    checkpoint_uid,
)
from unstable_stream.history.views.cost import run_cost
from unstable_stream.runs.data_dir import DataDir

UPDATES = 4
_FORKED_AT = 3
_NEXT = ["report", "games", "sql", "watch", "verify", "why", "fork"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


class FinishedRun(LaunchedRun):
    """One finished run that several tests look at, and what is known of it once it is over."""

    run_id: str
    status: int
    still_there: list[str]
    rows_while_running: int
    """Finished games the archive knew of during the run."""


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A whole run through the command line: launcher, services, Ray, engine, learner, archive."""

    async def play() -> FinishedRun:
        async with FinishedRun.train(tmp_path_factory.mktemp("run"), f"learner.iterations={UPDATES}") as run:
            await run.until("the first update", lambda seen: bool(seen.of(LearnerUpdate)))
            answer = await run.command("sql", "SELECT count(*) AS games FROM game_outcomes", "--json")
            assert answer.returncode == 0, answer.stderr
            run.rows_while_running = json.loads(answer.stdout)[0]["games"]
            run.status = await run.end()
            run.run_id = run.history.of(GameOutcome)[0].run_id
            run.still_there = run.left_behind()
        return run

    return asyncio.run(play())


def asked(data: Path, *arguments: str) -> "CompletedProcess[str]":
    """Give a command about the run in this process: a new one loads for seconds what is here."""
    return command_line.run_command(*arguments, "--data", str(data), cwd=data, UNSTABLE_STREAM_LOG="local")


def rows(data: Path, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(asked(data, "sql", query, "--json").stdout)
    return found


def test_it_ends_well_and_leaves_no_process_behind(finished_run: FinishedRun) -> None:
    assert finished_run.status == 0
    assert finished_run.still_there == []
    history = finished_run.history
    assert [(end.outcome, end.updates) for end in history.of(RunFinished)] == [("completed", UPDATES)]
    assert len(history.of(RunStarted)) == 1
    assert [update.update for update in history.of(LearnerUpdate)] == list(range(1, UPDATES + 1))
    assert [len(update.step_ids) for update in history.of(LearnerUpdate)] == [96] * UPDATES
    uids = [checkpoint.model_uid for checkpoint in history.of(Checkpoint)]
    assert uids == [checkpoint_uid(iteration) for iteration in range(UPDATES + 1)]
    assert history.of(RecordRejected) == [], "as a trajectory is with a turn that does not say who made it"
    trained = {step.policy_version for step in history.of(Step)}
    assert len(trained) > 1, "games go on with newer checkpoints as they come"


def test_it_says_what_it_waits_for_and_how_it_goes_on_stderr(finished_run: FinishedRun) -> None:
    lines = finished_run.stderr.read_text().splitlines()
    stages = ["checking the configuration", "starting Ray", "loading the model"]
    assert [line for line in lines if line in stages] == stages
    placed = re.compile(r"learner and engine on the CPU; memory .* at the start, .* at most, .* free$")
    progress = re.compile(r"\[ *\d+ s\] (update \d/4  games \d+ train \d+ eval|starting |loading the model)")
    told = [bool(placed.match(line)) for line in lines if line not in stages and not progress.match(line)]
    assert told == [True]
    assert any(progress.match(line) for line in lines)


def test_it_ends_with_its_results_and_with_commands_that_work(finished_run: FinishedRun) -> None:
    told = finished_run.stdout.read_text()
    assert f"Run {finished_run.run_id} completed: update {UPDATES} of {UPDATES}, " in told
    games = [outcome.split for outcome in finished_run.history.of(GameOutcome)]
    assert f"{games.count('train'):,} training games, {games.count('eval'):,} evaluation games" in told
    for heading in ("Before and after", "Rating ladder"):
        assert heading in told
    for opponent, met in (("random-legal", "yes"), ("first-legal", "yes"), ("minimax-2", "never")):
        rows = [line.split() for line in told.splitlines() if line.strip().startswith(opponent)]
        assert rows[0][1:4] == [met, "0", "6"]  # whether it was trained against, update and games
    commands = [line.split() for line in told.splitlines() if line.startswith("  unstable-stream ")]
    assert [command[1] for command in commands] == _NEXT
    (why,) = [command for command in commands if command[1] == "why"]
    done = asked(finished_run.data, *why[1:-2])  # without the data directory, which is given
    assert (done.returncode, done.stderr) == (0, "")


def test_the_audit_is_balanced(finished_run: FinishedRun) -> None:
    done = asked(finished_run.data, "audit", finished_run.run_id)
    assert (done.returncode, done.stderr) == (0, "")
    assert "balanced" in done.stdout


def test_everything_derived_can_be_recomputed_and_every_game_played_again(finished_run: FinishedRun) -> None:
    options = ("--train", "--updates", "all", "--json")
    done = run_command(finished_run.data, "verify", finished_run.run_id, *options)
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["trained"] == (
        f"{UPDATES} of {UPDATES} updates trained again: metrics equal bit by bit; "
        f"sha256 of {UPDATES} of {UPDATES} checkpoints equal"
    )
    compared = {check["name"]: check["compared"] for check in report["checks"]}
    assert compared["steps"] == len(finished_run.history.of(Step))
    assert compared["ratings"] == len(finished_run.history.of(Rating))
    assert compared["games"] == len(finished_run.history.of(GameOutcome))
    assert compared["trajectories"] == len(finished_run.history.of(Trajectory))
    assert compared["updates"] == compared["checkpoint files"] == UPDATES
    rated = asked(finished_run.data, "rerate", finished_run.run_id, "--dry-run", "--json")
    assert "0 of " in rated.stderr, rated.stderr
    assert all(row["mu"] == row["mu_used"] for row in json.loads(rated.stdout))


def test_evaluation_games_are_fixed_balanced_and_never_trained_on(finished_run: FinishedRun) -> None:
    games = finished_run.history.of(GameStarted)
    train_seeds = {game.seed for game in games if game.split == "train"}
    plans: dict[tuple[str | None, str], list[tuple[int, int]]] = defaultdict(list)
    for game in games:
        if game.split == "eval":
            mine = next(seat.seat for seat in game.seats if seat.model_uid == game.evaluated_uid)
            opponent = game.seats[1 - mine].model_uid
            plans[game.evaluated_uid, opponent].append((game.seed, mine))
            assert not any(seat.trained for seat in game.seats)
    assert not train_seeds & {seed for plan in plans.values() for seed, _ in plan}
    evaluated = [checkpoint_uid(iteration) for iteration in (0, 2, UPDATES)]
    opponents = ("random-legal", "first-legal", "minimax-2")
    assert set(plans) == {(uid, name) for uid in evaluated for name in opponents}
    for (uid, _), plan in plans.items():
        assert len({seed for seed, _ in plan}) == len(plan) == (4 if uid == checkpoint_uid(2) else 6)
        seats = Counter(seat for _, seat in plan)
        assert seats[0] == seats[1]
    assert plans[checkpoint_uid(0), "random-legal"] == plans[checkpoint_uid(0), "first-legal"]
    assert plans[checkpoint_uid(0), "random-legal"] == plans[checkpoint_uid(UPDATES), "random-legal"]


def test_the_archive_answers_during_the_run_and_holds_all_of_it(finished_run: FinishedRun) -> None:
    assert finished_run.rows_while_running > 0
    counted = Counter(outcome.split for outcome in finished_run.history.of(GameOutcome))
    found = rows(finished_run.data, "SELECT split, count(*) AS games FROM game_outcomes GROUP BY split")
    assert {row["split"]: row["games"] for row in found} == counted


def test_every_process_has_reported_its_cost_and_nothing_was_lost(finished_run: FinishedRun) -> None:
    cost = run_cost(DataDir(finished_run.data).archive, finished_run.run_id)
    assert cost.used is not None
    whole = {part.process: part for part in cost.used.parts if part.part is None}
    assert whole.keys() == {
        *("launcher", "processors", "archiver", "collector"),
        *("learner-host", "learner", "engine-0", "rollout-0"),
    }
    assert all(part.cpu_s > 0 and part.incarnations == 1 for part in whole.values())
    assert cost.used.cpu_s == pytest.approx(sum(part.cpu_s for part in whole.values()))
    assert (cost.faults, cost.lost_s) == (0, 0)


def test_a_fork_goes_on_from_a_checkpoint_of_its_parent(finished_run: FinishedRun, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(finished_run.data, data)
    settings = ("--set", "name=forked", "--set", "backend=inline")
    forked = asked(data, "fork", finished_run.run_id, "--at", str(_FORKED_AT), *settings, "--quiet")
    assert forked.returncode == 0, forked.stderr

    (run,) = rows(data, "SELECT run_id, parent_run_id, parent_update FROM runs WHERE name = 'forked'")
    assert (run["parent_run_id"], run["parent_update"]) == (finished_run.run_id, _FORKED_AT)
    fork = run["run_id"]
    updates = rows(data, f"SELECT \"update\" FROM updates WHERE run_id = '{fork}' ORDER BY 1")
    assert [row["update"] for row in updates] == list(range(_FORKED_AT + 1, UPDATES + 1))
    (games,) = rows(
        data,
        f"""SELECT (SELECT min(game_index) FROM games WHERE run_id = '{fork}' AND split = 'train') AS first,
                   (SELECT count(*) FROM games WHERE run_id = '{finished_run.run_id}' AND split = 'train'
                    AND started_at <= (SELECT occurred_at FROM checkpoints WHERE iteration = {_FORKED_AT}
                                       AND run_id = '{finished_run.run_id}')) AS before""",
    )
    assert games["first"] == games["before"]
    for run_id in (fork, finished_run.run_id):
        for check in ("audit", "verify"):
            checked = asked(data, check, str(run_id))
            assert checked.returncode == 0, checked.stdout


@pytest.mark.long
async def test_a_killed_launcher_then_the_same_evaluation_games(
    tmp_path: Path, finished_run: FinishedRun
) -> None:
    """What plays it is one process here, and was Ray there."""
    async with LaunchedRun.train(tmp_path, f"learner.iterations={UPDATES}", "backend=inline") as first:
        await first.until("the first update", lambda seen: len(seen.of(LearnerUpdate)) >= 1)
        first.popen.send_signal(signal.SIGKILL)
        assert await first.end() == -signal.SIGKILL
        run_id = first.history.of(RunStarted)[0].run_id
        made = len(first.history.of(LearnerUpdate))
        assert made < UPDATES, "the run was killed too late for this test to mean anything"
        await first.prove(run_id)

        async with LaunchedRun.resume(first, run_id) as second:
            assert await second.end() == 0, second.told()
        events = first.history.events
        assert [event.resumption for event in first.history.of(RunResumed)] == [1]
        assert [e.outcome for e in first.history.of(RunFinished)] == ["completed"]
        assert {update.update for update in first.history.of(LearnerUpdate)} == set(range(1, UPDATES + 1))
        assert re.search(r"train games started.* \+ 0 in flight", await first.prove(run_id))
        cost = run_cost(DataDir(tmp_path).archive, run_id)
        assert cost.used is not None
        assert [part.incarnations for part in cost.used.parts if part.part is None] == [2]
        assert cost.faults == 1
        resumed = first.history.of(RunResumed)[0].occurred_at_ms
        before = [event for event in first.history.events if event.occurred_at_ms < resumed]
        in_flight = sum(isinstance(e, GameStarted) for e in before) - sum(
            isinstance(e, GameOutcome | GameAbandoned) for e in before
        )
        assert (cost.lost_s > 0) <= (in_flight > 0), "nothing is lost of games that had ended"

    # Same seed, same evaluation games; and the initial policy, with the same seeds, makes the same moves.
    assert evaluation_plan(events) == evaluation_plan(finished_run.history.events)
    assert initial_moves(events) == initial_moves(finished_run.history.events)


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
