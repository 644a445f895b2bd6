"""The audit finds every kind of loss, repetition and disagreement, and says where."""

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import made
from tests.services.workers.test_game_schedule import config
from unstable_stream.events import (
    Checkpoint,
    DroppedStep,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    RecordRejected,
    RunFinished,
    RunResumed,
    RunStarted,
    Seat,
    SeatResult,
    Step,
    StepsDropped,
    Trajectory,
    Turn,
    checkpoint_uid,
    game_id,
    step_id,
    trajectory_id,
)
from unstable_stream.history.proofs.balance import balance
from unstable_stream.history.proofs.ledger import Ledger
from unstable_stream.history.proofs.reports import AuditReport
from unstable_stream.history.proofs.verify import audit_run
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.history import RunStatus

RUN = "run-test"
TURNS = 3
GAMES = 4


def history() -> list[Event]:
    """A completed run: four training games of three trained turns, one of them abandoned, two updates."""
    settings = config(learner={"iterations": 2}).model_dump(mode="json")
    events: list[Event] = [made(RunStarted, occurred_at_ms=0, name="t", config=settings), checkpoint(0)]
    for index in range(GAMES):
        game = started(index)
        events += [game, *([made(GameAbandoned, game)] if index == GAMES - 1 else finished(game))]
    ids = [event.event_id for event in events if isinstance(event, Step)]
    events += [update(1, ids[:4]), checkpoint(1)]
    events += [update(2, ids[4:7], ids[7:8]), checkpoint(2)]
    return [*events, made(RunFinished, occurred_at_ms=9, updates=0)]


def checkpoint(iteration: int, path: str | None = None, sha256: str | None = None) -> Checkpoint:
    return made(Checkpoint, occurred_at_ms=iteration, iteration=iteration, path=path, sha256=sha256)


def started(index: int) -> GameStarted:
    uid = checkpoint_uid(0)
    ours = Seat(seat=0, model_uid=uid, kind="checkpoint", policy_version=0, trained=True)
    theirs = Seat(seat=1, model_uid="random-legal", kind="scripted")
    return made(GameStarted, game_index=index, seed=index, seats=(ours, theirs))


def finished(game: GameStarted) -> list[Event]:
    played = ({"turn_index": index, "game_turn": 2 * index} for index in range(TURNS))
    turns = tuple(made(Turn, policy_version=0, **numbers) for numbers in played)
    won: dict[str, Any] = {"rewards": {0: 1.0, 1: -1.0}, "reason": "win"}
    trajectory = made(Trajectory, game, trained=True, trained_seats=(0,), turns=turns, **won)
    steps: list[Event] = [
        made(Step, game, trajectory_id=trajectory.event_id, turn_index=index, num_turns=TURNS)
        for index in range(TURNS)
    ]
    ours = made(SeatResult, trained=True, turns=TURNS)
    theirs = SeatResult(seat=1, model_uid="random-legal", kind="scripted", reward=-1.0, rank=1, turns=TURNS)
    return [trajectory, made(GameOutcome, game, seats=(ours, theirs), reason="win"), *steps]


def update(number: int, trained: list[str], stale: Sequence[str] = ()) -> LearnerUpdate:
    steps = {"step_ids": tuple(trained), "dropped": tuple(DroppedStep(name, "stale") for name in stale)}
    uid = checkpoint_uid(number)
    return made(LearnerUpdate, occurred_at_ms=number, update=number, model_uid=uid, **steps)


def audit(events: Iterable[Event], *, steps_kept: bool = True) -> AuditReport:
    ledger = Ledger(RunStatus(RUN), steps_kept=steps_kept)
    for offset, event in enumerate(events):
        ledger.apply(event, 0, offset)
    return balance(ledger)


def test_a_whole_run_balances() -> None:
    report = audit(history())
    assert report.problems == ()
    assert report.state == "completed"
    assert dataclasses.astuple(report.games["train"]) == (4, 3, 1, 0)
    assert dataclasses.astuple(report.steps) == (9, 9, 0, 0, 7, {"stale": 1}, 1)
    assert (report.updates, report.checkpoints, report.redelivered) == (2, 3, 0)


def test_steps_that_expired_are_dropped_once() -> None:
    """Retention has deleted all steps from the log; one that no update had used was found lost."""
    left = step_id(trajectory_id(game_id(RUN, "train", 2), 0), TURNS - 1)
    expired = made(StepsDropped, update=3, dropped=(DroppedStep(left, "expired"),))
    kept = [event for event in history() if not isinstance(event, Step)]
    assert audit(kept, steps_kept=False).steps.pending == 1
    report = audit([*kept, expired], steps_kept=False)
    assert report.problems == ()
    assert (report.steps.dropped, report.steps.pending) == ({"stale": 1, "expired": 1}, 0)
    assert audit([*kept, expired, expired], steps_kept=False).steps.dropped == report.steps.dropped

    other = made(StepsDropped, update=4, dropped=expired.dropped)
    problems = audit([*kept, expired, other], steps_kept=False).problems
    assert len(problems) == 1
    assert problems[0].startswith("step trained or dropped twice: learner-updates")


def test_a_report_ends_with_its_problems() -> None:
    assert str(audit(history()[1:])).splitlines()[-2:] == [
        " 1 problems",
        "   run never started: there is no run-started event of run-test",
    ]


def test_what_has_been_weighed_takes_nothing_more_in() -> None:
    ledger = Ledger(RunStatus(RUN))
    ledger.apply(checkpoint(0), 0, 0)
    assert balance(ledger) == balance(ledger)
    with pytest.raises(ValueError, match="the index of checkpoints is sealed"):
        ledger.apply(checkpoint(1), 0, 1)


def test_neither_order_nor_redelivery_nor_other_runs_matter() -> None:
    events = history()
    random.Random(5).shuffle(events)
    strangers = [msgspec.structs.replace(event, run_id="another") for event in events]
    report = audit([*strangers, *events, *events[:7], events[3]])
    assert report.redelivered == 8
    assert dataclasses.replace(report, redelivered=0) == audit(history())


def test_a_game_played_again_or_given_up_by_another_worker_counts_once() -> None:
    outcome = next(event for event in history() if isinstance(event, GameOutcome))
    again = msgspec.structs.replace(outcome, occurred_at_ms=99, reason="draw")
    report = audit([*history(), again, made(GameAbandoned, started(0))])
    assert report.problems == ()
    assert report.replayed == 1
    assert dataclasses.astuple(report.games["train"]) == (4, 3, 1, 0)


def of(kind: type[Event], number: int = 0) -> Callable[[list[Event]], int]:
    def find(events: list[Event]) -> int:
        return [index for index, event in enumerate(events) if isinstance(event, kind)][number]

    return find


@pytest.mark.parametrize(
    ("lost", "problem"),
    [
        (of(RunStarted), "run never started"),
        (of(GameStarted, 1), "game never started"),
        (of(GameStarted, 3), "game never started"),
        (of(GameAbandoned), "games in flight: the run is over, but 1 train games never ended"),
        (of(GameOutcome), "trajectory without outcome: trajectories[0]@"),
        (of(Trajectory), "trajectory missing: game-outcomes[0]@"),
        (of(Step, 4), "steps do not match their trajectory: trajectories[0]@"),
        (of(Step, 8), "steps do not match their trajectory"),
        (of(Step, 0), "unknown step consumed: learner-updates[0]@"),
        (of(LearnerUpdate, 0), "update left out: there is no update 1"),
        (of(LearnerUpdate, 1), "updates missing: the run is completed with 1 of 2"),
        (of(Checkpoint, 0), "checkpoint missing: the initial policy"),
        (of(Checkpoint, 1), "checkpoint lost: update 1 names"),
    ],
)
def test_a_lost_record_is_found(lost: Callable[[list[Event]], int], problem: str) -> None:
    events = history()
    del events[lost(events)]
    report = audit(events)
    assert not report.ok
    assert any(line.startswith(problem) for line in report.problems), report.problems


def test_a_run_that_was_stopped_may_have_a_checkpoint_that_no_update_names() -> None:
    events = history()
    last = of(LearnerUpdate, 1)(events)
    events[last] = msgspec.structs.replace(events[last], model_uid=None)
    assert audit(events).problems == ()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_step_consumed_twice_is_found(dropped: bool) -> None:
    events = history()
    ids = [event.event_id for event in events if isinstance(event, Step)]
    again = update(2, ids[4:7], ids[4:5]) if dropped else update(2, [*ids[4:7], ids[0]])
    events[of(LearnerUpdate, 1)(events)] = again
    (twice,) = [line for line in audit(events).problems if line.startswith("step trained or dropped twice: ")]
    assert "was consumed at learner-updates[0]@" in twice


@pytest.mark.parametrize("kind", [GameStarted, Step, LearnerUpdate, Checkpoint])
def test_one_id_with_two_contents_is_found_with_both_positions(kind: type[Event]) -> None:
    events = history()
    first = of(kind)(events)
    forged = msgspec.structs.replace(events[first], occurred_at_ms=77)
    problems = audit([*events, forged]).problems
    topic = kind.TOPIC
    assert [line.split(":")[0] for line in problems] == ["event id with two contents"]
    assert f"{topic}[0]@{len(events)}" in problems[0]
    assert f"{topic}[0]@{first}" in problems[0]


def test_a_trajectory_must_agree_with_the_outcome_that_counts() -> None:
    events = history()
    where = of(GameOutcome)(events)
    outcome = events[where]
    assert isinstance(outcome, GameOutcome)
    ours = msgspec.structs.replace(outcome.seats[0], turns=2)
    events[where] = msgspec.structs.replace(outcome, seats=(ours, outcome.seats[1]))
    kinds = {line.split(":")[0] for line in audit(events).problems}
    assert kinds == {"trajectory and outcome differ", "steps do not add up"}


def test_a_run_that_goes_on_may_have_games_in_flight_and_steps_to_be_shaped() -> None:
    events = history()[:-1]
    events.append(started(GAMES))
    trajectory = events[of(Trajectory, -1)(events)].event_id
    gone = {step_id(trajectory, turn) for turn in range(TURNS)} | {update(2, []).event_id}
    report = audit(event for event in events if event.event_id not in gone | {checkpoint(2).event_id})
    assert report.problems == ()
    assert report.state == "running"
    assert report.games["train"].in_flight == 1
    assert (report.steps.expected, report.steps.produced, report.steps.unshaped) == (9, 6, 3)


def test_a_resumed_run_is_judged_by_its_last_end() -> None:
    resumed = made(RunResumed, config=config(learner={"iterations": 3}).model_dump(mode="json"))
    assert audit([*history(), resumed]).state == "running"
    assert audit([*history(), resumed, made(RunFinished, updates=1)]).problems == (
        "updates missing: the run is completed with 2 of 3 updates",
    )


@pytest.mark.parametrize("case", ["refused", "undecodable", "undecodable, and its steps dropped"])
def test_a_trajectory_that_cannot_be_decoded_is_accounted_for(case: str) -> None:
    """It is on ``dead-letters``, where it is refused too; the learner has recorded its steps as dropped, or
    has not come to it yet.
    """
    events = [event for event in history() if not (isinstance(event, Step) and event.game_index == 2)]
    left = [event.event_id for event in events if isinstance(event, Step)][4:]
    events[of(LearnerUpdate, 1)(events)] = update(2, left)
    where = of(Trajectory, -1)(events)
    uid = events[where].event_id
    letter = {"consumer": "reward-processor", "topic": "trajectories", "offset": where, "reason": "test"}
    events.append(made(RecordRejected, record_headers={"ce_id": uid.encode()}, **letter))
    if case != "refused":
        del events[where]
    drops = tuple(DroppedStep(step_id(uid, turn), "unreadable") for turn in range(TURNS))
    if case.endswith("dropped"):
        events.append(made(StepsDropped, update=2, dropped=drops))
    report = audit(events)
    assert report.problems == ()
    assert report.rejected == 1
    steps = report.steps
    assert (steps.produced, steps.set_aside, steps.trained, steps.pending) == (6, 3, 6, 0)
    assert steps.dropped == ({"unreadable": 3} if case.endswith("dropped") else {})


def test_many_problems_of_a_kind_are_abridged() -> None:
    events = [event for event in history() if not isinstance(event, GameStarted)]
    events += [made(GameAbandoned, started(index)) for index in range(GAMES, 60)]
    problems = audit(events).problems
    never = [line for line in problems if line.startswith("game never started")]
    assert len(never) == 21
    assert never[-1] == "game never started: and 40 more"


# -- against a log --------------------------------------------------------------------------------


async def test_a_bad_record_must_be_on_dead_letters(tmp_path: Path) -> None:
    records = [record_from_event(event) for event in history()]
    bad = msgspec.structs.replace(records[0], topic="steps", value=b"{]", partition=2)
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        await log.append([*records, bad])
        (problem,) = (await audit_run(log, RUN)).problems
        assert problem.startswith("bad record not on dead-letters: steps[2]@")
        offset = int(problem.split(": ")[1].split("@")[1])
        letter = made(RecordRejected, run_id="", consumer="archiver", partition=2, offset=offset)
        await log.append([record_from_event(letter)])
        report = await audit_run(log, RUN)
    assert (report.problems, report.rejected) == ((), 1)
