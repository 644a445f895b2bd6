"""Verification finds nothing in a truthful run, and in another what was changed, where, and both values."""

import asyncio
import math
import secrets
import sqlite3
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import made
from tests.history.proofs.recorded_run import copy_log, nth, play, process_run, record_run, small_config
from unstable_stream.errors import RunError
from unstable_stream.events import (
    Action,
    Checkpoint,
    DroppedStep,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Rating,
    RunStarted,
    Step,
    Trajectory,
    encode_event,
)
from unstable_stream.events.arrays import pack_floats, unpack_floats
from unstable_stream.history.proofs.reports import Check, VerifyReport
from unstable_stream.history.proofs.verify import audit_run, verify_run
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Positions, StoredRecord
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.runs.history import read_history
from unstable_stream.services.streams.snapshots import FoldState, SnapshotPace, pack, run_name
from unstable_stream.services.workers.collector import event_for_collector, topics_of_collector
from unstable_stream.services.workers.collector_snapshot import CollectorSnapshots
from unstable_stream.services.workers.exploitability import ExploitabilitySchedule
from unstable_stream.services.workers.game_schedule import GameSchedule

pytestmark = pytest.mark.longer

RUN = "run-verified"
replace = msgspec.structs.replace


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a finished run."""
    path = tmp_path_factory.mktemp("recorded") / "log.sqlite"

    async def record() -> None:
        async with LocalLog.open(path, synchronous="NORMAL") as log:
            await record_run(log, RUN, reads=(500, 25))

    asyncio.run(record())
    return path


@asynccontextmanager
async def tampered(
    recorded: Path, directory: Path, change: Callable[[StoredRecord], bytes]
) -> AsyncIterator[LocalLog]:
    """A copy of the recorded log with other values."""
    async with (
        LocalLog.open(recorded) as source,
        LocalLog.open(directory / "copy.sqlite", synchronous="NORMAL") as copy,
    ):
        await copy_log(source, copy, change)
        yield copy


def by_name(report: VerifyReport) -> dict[str, Check]:
    return {check.name: check for check in report.checks}


def differing(report: VerifyReport) -> dict[str, int]:
    return {check.name: check.differing for check in report.checks if check.differing}


async def test_a_truthful_run_verifies(recorded: Path) -> None:
    async with LocalLog.open(recorded) as log:
        report = await verify_run(log, RUN)
        counts = {
            kind: len([event async for event in events_to_end(log, (kind.TOPIC,), run_id=RUN)])
            for kind in (Trajectory, Rating, Step)
        }
    checks = by_name(report)
    assert report.ok, [str(one) for check in report.checks for one in check.first]
    assert report.state == "completed"
    assert checks["games"].compared == checks["game starts"].compared == 45
    assert checks["trajectories"].compared == counts[Trajectory] > 30
    assert checks["ratings"].compared == counts[Rating] > 100
    assert checks["steps"].compared == counts[Step] > 100
    assert checks["updates"].compared == 3
    assert checks["snapshots"].compared >= 2, "one of each processor that had records"
    used, steps = checks["steps used"], checks["steps"]
    assert used.compared > 3 * 20, "drops are counted too"
    assert used.compared + used.pending == steps.compared
    assert not any(check.pending for check in report.checks if check.name != "steps used")


async def test_a_snapshot_is_held_against_a_fold_from_the_beginning(recorded: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(recorded)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    scope = f"rating-processor/{RUN}/game-outcomes/0"
    async with LocalLog.open(copy) as log:
        saved = await log.saved(scope)
        name = run_name(RUN)
        run = msgspec.json.decode(zlib.decompress(saved[name]), type=FoldState)
        model, rated = next(iter(run.state["ratings"]["*"].items()))
        rated[0] += 1e-9
        wrong = pack(run.position, run.digest, run.state)
        async with (await log.producer("test")).transaction() as transaction:
            await transaction.save(scope, {name: wrong})
        report = await verify_run(log, RUN, games=False)
        assert differing(report) == {"snapshots": 1}
        (found,) = by_name(report)["snapshots"].first
        assert found.where == f"snapshot {scope} of offset {run.position}"
        assert found.field == f"$.ratings.*.{model}[0]"
        # Without it there is nothing wrong: it can be deleted at any time.
        async with (await log.producer("test")).transaction() as transaction:
            await transaction.save(scope, dict.fromkeys(saved, b""))
        report = await verify_run(log, RUN, games=False)
        assert report.ok, [str(one) for check in report.checks for one in check.first]


async def test_the_collectors_snapshot_is_held_against_a_fold_from_the_beginning(
    recorded: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(recorded)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    async with LocalLog.open(copy) as log:
        run = (await read_history(log)).run(RUN)
        settings = run.config()
        topics = topics_of_collector(settings)
        schedule = GameSchedule(RUN, settings, run.began)
        consumer = await log.consumer(topics)
        for _ in range(5):
            for record in await consumer.poll(max_records=20):
                if (event := event_for_collector(record, RUN)) is not None:
                    schedule.apply(event)
        measuring = ExploitabilitySchedule(RUN, settings)
        snapshots = CollectorSnapshots(log, RUN, topics, settings, schedule, measuring, SnapshotPace())

        async def verified(positions: Positions) -> Check:
            async with (await log.producer("test")).transaction() as transaction:
                await snapshots.save(transaction, positions)
            return by_name(await verify_run(log, RUN, games=False))["collector snapshot"]

        truthful = await verified(consumer.positions())
        assert (truthful.compared, truthful.first) == (1, [])
        ends = {at: end for topic in topics for at, end in (await log.end_offsets(topic)).items()}
        wrong = await verified(ends)
        assert (wrong.compared, wrong.differing) == (1, 1)
        assert wrong.first[0].where == f"snapshot of collector/{RUN}"


async def test_a_collector_snapshot_that_cannot_be_checked_here_counts_as_gone(
    recorded: Path, tmp_path: Path
) -> None:
    def elsewhere(event: RunStarted) -> Event:
        pool = event.config["model_pool"] | {"sample_mode": "a_module_of_another_machine:pick"}
        return replace(event, config=event.config | {"model_pool": pool})

    async with tampered(recorded, tmp_path, nth(0, RunStarted, elsewhere)) as log:
        nothing = await verify_run(log, RUN, games=False)
        topics = topics_of_collector((await read_history(log)).run(RUN).config())
        async with (await log.producer("test")).transaction() as transaction:
            await transaction.save(f"collector/{RUN}/{'+'.join(topics)}/all", {"state": b"anything"})
        something = await verify_run(log, RUN, games=False)
    assert by_name(nothing)["collector snapshot"].gone == 0
    assert by_name(something)["collector snapshot"].gone == 1
    assert something.ok


async def test_drops_of_every_kind_are_among_what_was_verified(recorded: Path) -> None:
    async with LocalLog.open(recorded) as log:
        updates = [
            event_from_record(record) for record in await (await log.consumer(["learner-updates"])).poll()
        ]
    reasons = {drop.reason for event in updates if isinstance(event, LearnerUpdate) for drop in event.dropped}
    assert reasons == {"overflow", "stale", "truncated"}


async def test_a_step_that_nobody_could_have_trained_on_is_found(recorded: Path, tmp_path: Path) -> None:
    def cut(event: Step) -> Event:
        return replace(event, logprobs=pack_floats([math.nan] * len(unpack_floats(event.logprobs))))

    async with tampered(recorded, tmp_path, nth(2, Step, cut)) as log:
        report = await verify_run(log, RUN)
    assert differing(report) == {"steps": 1, "updates": 1}
    (found,) = next(check for check in report.checks if check.name == "updates").first
    assert "cannot be decided again: step" in found.what
    assert "a log-probability that is not finite" in found.what


async def test_a_run_that_is_not_there_is_an_error(recorded: Path) -> None:
    async with LocalLog.open(recorded) as log:
        with pytest.raises(RunError, match="no run 'nope'"):
            await verify_run(log, "nope")


async def test_books_that_do_not_balance_fail_though_all_that_is_there_follows_from_its_causes(
    recorded: Path, tmp_path: Path
) -> None:
    async with tampered(recorded, tmp_path, lambda record: record.value) as log:
        whole = await verify_run(log, RUN, games=False)
        lost = made(GameAbandoned, run_id=RUN, game_id="g", game_index=45, reason="")
        await log.append([record_from_event(lost)])
        report = await verify_run(log, RUN, games=False)
        alone = await audit_run(log, RUN)
    assert whole.ok
    assert whole.audit.games["train"].finished == 45
    assert differing(report) == {}
    assert not report.ok
    assert report.problems == alone.problems
    assert report.problems[0].endswith("game g ended, but never started")
    assert report.problems[0].startswith("game never started: games[0]@")
    assert report.verdict == "0 difference(s), 2 problems of the ledger"
    assert msgspec.json.decode(report.to_json())["clean"] is False


async def test_a_report_reads_like_the_table_that_the_command_prints(recorded: Path) -> None:
    async with LocalLog.open(recorded) as log:
        report = await verify_run(log, RUN, games=False)
    lines = [line.split() for line in repr(report).splitlines()]
    assert lines[0] == [RUN, "(completed)"]
    assert lines[1] == ["compared", "differ", "pending", "gone"]
    steps = by_name(report)["steps"]
    assert lines[2] == ["steps", str(steps.compared), "0", "0", "0"]
    assert lines[-1] == ["verified"]
    assert str(report) == repr(report)


async def test_the_beginning_of_an_id_is_no_run(recorded: Path) -> None:
    async with LocalLog.open(recorded) as log:
        for prove in (audit_run, verify_run):
            with pytest.raises(RunError, match=f"no run '{RUN[:-1]}' in this log"):
                await prove(log, RUN[:-1])


@pytest.mark.parametrize(
    ("check", "kind", "field", "change"),
    [
        ("steps", Step, "$.final_reward", lambda e: replace(e, final_reward=e.final_reward + 0.25)),
        (
            "steps",
            Step,
            "$.completion_token_ids",
            lambda e: replace(e, completion_token_ids=bytes(len(e.completion_token_ids))),
        ),
        ("ratings", Rating, "$.mu", lambda e: replace(e, mu=e.mu + 1e-9)),
        ("updates", LearnerUpdate, "$.step_ids[0]", lambda e: replace(e, step_ids=e.step_ids[::-1])),
        (
            "updates",
            LearnerUpdate,
            "$.metrics.reward_mean",
            lambda e: replace(e, metrics={**e.metrics, "reward_mean": 9.0}),
        ),
        (
            "trajectories",
            Trajectory,
            "$.turns[0].observation",
            lambda e: replace(e, turns=(replace(e.turns[0], observation="a nicer board"), *e.turns[1:])),
        ),
        ("game starts", GameStarted, "$.seed", lambda e: replace(e, seed=e.seed + 1)),
        ("games", GameOutcome, "$.reason_text", lambda e: replace(e, reason_text="because")),
        ("games", GameOutcome, "$.num_turns", lambda e: replace(e, num_turns=e.num_turns + 1)),
    ],
)
async def test_one_changed_value_is_named_with_its_place(
    recorded: Path, tmp_path: Path, check: str, kind: type[Event], field: str, change: Callable[[Any], Event]
) -> None:
    before: list[Event] = []

    def remember(event: Event) -> Event:
        before.append(event)
        return change(event)

    async with tampered(recorded, tmp_path, nth(2, kind, remember)) as log:
        report = await verify_run(log, RUN)
    assert differing(report) == {check: 1}
    (difference,) = by_name(report)[check].first
    (original,) = before
    assert difference.field == field
    assert difference.event_id == original.event_id
    assert difference.where.startswith(f"{kind.TOPIC}[")
    assert difference.recorded != difference.recomputed
    body = msgspec.json.decode(encode_event(original))
    if field.count(".") == 1 and "[" not in field:
        assert difference.recomputed == msgspec.json.encode(body[field.removeprefix("$.")]).decode()
    assert str(difference).startswith(difference.where)


async def test_a_changed_reward_shows_in_its_step_and_in_the_batch_it_was_drawn_for(
    recorded: Path, tmp_path: Path
) -> None:
    more = nth(2, Step, lambda event: replace(event, reward=event.reward + 0.25))
    async with tampered(recorded, tmp_path, more) as log:
        report = await verify_run(log, RUN)
    assert differing(report) == {"steps": 1, "updates": 1}
    assert by_name(report)["steps"].first[0].field == "$.reward"
    assert by_name(report)["updates"].first[0].field == "$.metrics.reward_mean"


async def test_a_changed_move_shows_where_the_game_goes_another_way(recorded: Path, tmp_path: Path) -> None:
    def other_move(event: GameOutcome) -> GameOutcome:
        first = event.actions[0]
        return replace(event, actions=(Action(first.seat, "[nonsense]", first.valid), *event.actions[1:]))

    async with tampered(recorded, tmp_path, nth(4, GameOutcome, other_move)) as log:
        report = await verify_run(log, RUN)
    found = differing(report)
    assert found.keys() <= {"games", "trajectories"}
    assert found["games"] == 1
    assert not report.ok


async def test_a_game_that_cannot_be_played_again_condemns_no_trajectory(
    recorded: Path, tmp_path: Path
) -> None:
    def fewer_moves(event: GameOutcome) -> GameOutcome:
        return replace(event, actions=event.actions[:1])

    async with tampered(recorded, tmp_path, nth(4, GameOutcome, fewer_moves)) as log:
        report = await verify_run(log, RUN)
    assert differing(report) == {"games": 1}
    (difference,) = by_name(report)["games"].first
    assert "played again, seat" in difference.what


async def test_a_changed_result_shows_in_all_that_follows_from_it(recorded: Path, tmp_path: Path) -> None:
    def other_result(event: GameOutcome) -> GameOutcome:
        seats = (replace(event.seats[0], rank=9), *event.seats[1:])
        return replace(event, seats=seats)

    async with tampered(recorded, tmp_path, nth(0, GameOutcome, other_result)) as log:
        report = await verify_run(log, RUN)
    found = differing(report)
    assert found["games"] == 1
    assert by_name(report)["games"].first[0].field == "$.seats[0].rank"
    assert found["ratings"] > 10, "all later ratings rest on it"
    assert len(by_name(report)["ratings"].first) == 10, "only the first are shown"


async def test_a_step_used_twice_and_a_step_nobody_knows(recorded: Path, tmp_path: Path) -> None:
    used: list[str] = []

    def again(event: LearnerUpdate) -> LearnerUpdate:
        return replace(event, step_ids=(used[0], "no-such-step", *event.step_ids[2:]))

    def change(record: StoredRecord) -> bytes:
        event = event_from_record(record)
        if isinstance(event, LearnerUpdate) and event.update == 1:
            used.append(event.step_ids[0])
        elif isinstance(event, LearnerUpdate) and event.update == 2:
            return encode_event(again(event))
        return record.value

    async with tampered(recorded, tmp_path, change) as log:
        report = await verify_run(log, RUN)
    told = [line for line in report.audit.problems if not line.startswith("steps do not")]
    assert len(told) == 2
    assert told[0].startswith(f"step trained or dropped twice: learner-updates[0]@1: step {used[0]} was")
    assert told[0].endswith("consumed at learner-updates[0]@0 already")
    assert told[1] == "unknown step consumed: learner-updates[0]@1: step no-such-step is not in the log"
    assert not report.ok


async def test_a_drop_for_another_reason(recorded: Path, tmp_path: Path) -> None:
    def other_reason(event: LearnerUpdate) -> LearnerUpdate:
        first = event.dropped[0]
        assert first.reason == "overflow"
        return replace(event, dropped=(DroppedStep(first.step_id, "stale"), *event.dropped[1:]))

    async with tampered(recorded, tmp_path, nth(0, LearnerUpdate, other_reason)) as log:
        report = await verify_run(log, RUN)
    assert differing(report) == {"updates": 1}
    (difference,) = by_name(report)["updates"].first
    assert (difference.field, difference.recorded, difference.recomputed) == (
        "$.dropped[0][1]",
        '"stale"',
        '"overflow"',
    )


async def test_a_record_that_is_gone_and_one_that_came_from_nowhere(recorded: Path, tmp_path: Path) -> None:
    async with tampered(
        recorded,
        tmp_path,
        lambda r: b"{}" if (r.topic, r.partition, r.offset) == ("ratings", 1, 3) else r.value,
    ) as log:
        stranger = Rating(
            event_id="stranger",
            run_id=RUN,
            occurred_at_ms=1,
            env_id="*",
            model_uid="fixed-0",
            mu=50.0,
            sigma=1.0,
            games=99,
            game_id="g",
        )
        await log.append([record_from_event(stranger)])
        report = await verify_run(log, RUN, games=False)
    assert differing(report) == {"ratings": 2}
    absent, extra = by_name(report)["ratings"].first
    assert by_name(report)["ratings"].pending == 0
    assert absent.where.startswith("game-outcomes[0]@")
    assert "no record on ratings follows from it" in absent.what
    assert extra.event_id == "stranger"
    assert extra.what == "follows from nothing in the log"


async def test_one_event_with_two_contents(recorded: Path, tmp_path: Path) -> None:
    async with tampered(recorded, tmp_path, lambda record: record.value) as log:
        first = event_from_record((await (await log.consumer(["steps"])).poll(1))[0])
        assert isinstance(first, Step)
        await log.append([record_from_event(first), record_from_event(replace(first, reward=7.0))])
        report = await verify_run(log, RUN, games=False)
    assert differing(report) == {"steps": 1}
    (difference,) = by_name(report)["steps"].first
    assert "is at steps[" in difference.what
    assert "with other content" in difference.what


async def test_other_settings_make_other_steps_and_draws(recorded: Path, tmp_path: Path) -> None:
    def other_config(record: StoredRecord) -> bytes:
        if record.topic != "runs" or b"run-started" not in record.value:
            return record.value
        body = msgspec.json.decode(record.value)
        body["config"]["rewards"]["step"][0]["penalty"] = -0.75
        body["config"]["seed"] = 12
        return msgspec.json.encode(body)

    async with tampered(recorded, tmp_path, other_config) as log:
        report = await verify_run(log, RUN, games=False)
    found = differing(report)
    assert found["updates"] == 3
    assert 0 < found["steps"] < by_name(report)["steps"].compared, "only turns with an invalid move"


async def test_checkpoint_files(recorded: Path, tmp_path: Path) -> None:
    files = {"good": "model.safetensors", "bad": "adapter_model.safetensors"}
    for name, file in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(name.encode())
    digest = "770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c"  # sha256 of "good"
    places = {1: "good", 2: "bad", 3: "absent"}

    def with_files(record: StoredRecord) -> bytes:
        event = event_from_record(record)
        if isinstance(event, Checkpoint) and event.iteration in places:
            place = places[event.iteration]
            parameters = "all" if place == "good" else "lora"
            path = str(tmp_path / place)
            return encode_event(replace(event, path=path, sha256=digest, parameters=parameters))
        return record.value

    async with tampered(recorded, tmp_path, with_files) as log:
        report = await verify_run(log, RUN, games=False)
    check = by_name(report)["checkpoint files"]
    assert (check.compared, check.differing, check.gone) == (2, 1, 1)
    assert "bad/adapter_model.safetensors is another file" in check.first[0].what


async def test_what_nobody_has_processed_yet_is_pending(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        config = await record_run(log, RUN, finish=False)
        done = await verify_run(log, RUN)
        assert done.state == "running"
        assert not by_name(done)["steps"].pending
        for index in range(45, 49):
            await log.append([record_from_event(event) for event in await play(RUN, config, index, 3)])
        report = await verify_run(log, RUN)
        assert report.ok, [str(one) for check in report.checks for one in check.first]
        checks = by_name(report)
        assert checks["steps"].pending > 0
        assert checks["ratings"].pending > 0
        assert checks["steps"].compared == by_name(done)["steps"].compared
        assert checks["games"].compared == by_name(done)["games"].compared + 4
        await process_run(log, RUN)
        caught_up = by_name(await verify_run(log, RUN))
        assert caught_up["steps"].pending == 0
        assert caught_up["steps"].compared == checks["steps"].compared + checks["steps"].pending


async def test_a_result_that_a_processor_left_out_is_no_pending_one(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        config = await record_run(log, RUN, finish=False)
        started, *ended = await play(RUN, config, 100, 3)
        await log.append([record_from_event(event) for event in (started, *ended)])
        # The positions say it has been processed, but nothing came of it.
        for group, topic in (("reward-processor", "trajectories"), ("rating-processor", "game-outcomes")):
            producer = await log.producer("liar")
            async with producer.transaction() as transaction:
                await transaction.commit_positions(f"{group}/{RUN}", await log.end_offsets(topic))
            await producer.close()
        report = await verify_run(log, RUN)
    assert set(differing(report)) == {"steps", "ratings"}
    assert not any(check.pending for check in report.checks if check.name != "steps used")


async def test_steps_past_their_retention_are_gone_not_wrong(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await record_run(log, RUN)
        whole = by_name(await verify_run(log, RUN, games=False))["steps"].compared
        await log.delete_before(await log.offsets_for_time("steps", 86_400_000))
        report = await verify_run(log, RUN, games=False)
    checks = by_name(report)
    assert report.ok
    assert checks["steps"].gone > 0
    assert checks["steps"].compared + checks["steps"].gone == whole
    assert checks["updates"].skipped == "steps that were drawn from are past the topic's retention"


async def test_a_learner_that_was_restarted_draws_what_can_be_drawn_again(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        settings_ = small_config(buffer={"max_staleness": None})
        await record_run(log, RUN, settings_, hosted=False, reads=(500, 500, 5), restart_after=2, games=20)
        updates = [event_from_record(r) for r in await (await log.consumer(["learner-updates"])).poll()]
        second, third = (e.positions for e in updates[1:] if isinstance(e, LearnerUpdate))
        assert sum(third.values()) < sum(second.values()), "the new learner drew before it had read all again"
        report = await verify_run(log, RUN, games=False)
    assert report.ok, [str(one) for check in report.checks for one in check.first]


async def test_a_fork_counts_its_updates_on_from_its_parents(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        config = small_config(learner={"iterations": 5})
        await record_run(log, RUN, config, hosted=False, parent_update=3)
        report = await verify_run(log, RUN, games=False)
    assert report.ok, [str(one) for check in report.checks for one in check.first]
    assert by_name(report)["updates"].compared == 2


@pytest.mark.slow
async def test_several_processes_find_the_same(recorded: Path, tmp_path: Path) -> None:
    def other_text(event: GameOutcome) -> GameOutcome:
        return replace(event, reason_text="because")

    async with tampered(recorded, tmp_path, nth(30, GameOutcome, other_text)) as log:
        alone = await verify_run(log, RUN)
        together = await verify_run(log, RUN, jobs=2)
    assert differing(alone) == {"games": 1}
    assert together.to_json() == alone.to_json()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    strategy=st.sampled_from(["random", "fifo", "prioritised", "prioritised(exponent=2.0)"]),
    staleness=st.none() | st.integers(0, 2),
    size=st.integers(40, 60),  # at least the steps that may be pending, twice a batch
    batch=st.integers(1, 20),
    seed=st.integers(0, 1000),
    truncated=st.sampled_from(["train", "mask", "drop"]),
    filtering=st.booleans(),
    reads=st.lists(st.sampled_from([5, 25, 500]), min_size=1, max_size=3),
    restart=st.integers(0, 2),
    allowed=st.integers(0, 3),
    step_texts=st.booleans(),
)
def test_any_run_verifies(
    tmp_path_factory: pytest.TempPathFactory,
    strategy: str,
    staleness: int | None,
    size: int,
    batch: int,
    seed: int,
    truncated: str,
    filtering: bool,
    reads: list[int],
    restart: int,
    allowed: int,
    step_texts: bool,
) -> None:
    config = small_config(
        seed=seed,
        buffer={"strategy": strategy, "max_staleness": staleness, "max_buffer_size": size},
        learner={"batch_size": batch, "mini_batch_size": 1},
        algorithm={"truncated_turns": truncated},
        collector={"filter_opponent_invalid": filtering, "invalid_moves_allowed": allowed},
        rewards={"step_texts": step_texts},
    )

    async def check() -> VerifyReport:
        path = tmp_path_factory.mktemp("any") / "log.sqlite"
        async with LocalLog.open(path, synchronous="NORMAL") as log:
            await record_run(log, RUN, config, games=20, hosted=False, reads=reads, restart_after=restart)
            return await verify_run(log, RUN)

    report = asyncio.run(check())
    assert report.ok, [str(one) for each in report.checks for one in each.first]
    assert by_name(report)["updates"].compared == 3


async def test_on_any_log(any_log: EventLog) -> None:
    run_id = f"run-{secrets.token_hex(6)}"
    await record_run(any_log, run_id, small_config(learner={"iterations": 1}), games=12, finish=False)
    report = await verify_run(any_log, run_id)
    assert report.ok, [str(one) for each in report.checks for one in each.first]
    assert by_name(report)["steps"].compared > 20
    assert by_name(report)["updates"].compared == 1
    first = await anext(step async for _, step in events_to_end(any_log, (Step.TOPIC,), run_id=run_id))
    assert isinstance(first, Step)
    await any_log.append([record_from_event(replace(first, final_reward=7.0))])
    changed = await verify_run(any_log, run_id, games=False)
    assert differing(changed) == {"steps": 1}
    assert by_name(changed)["steps"].first[0].event_id == first.event_id
