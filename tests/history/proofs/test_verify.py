"""Verification finds nothing in a truthful run, and in another what was changed, where, and both values."""

import asyncio
import math
import secrets
import sqlite3
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import made
from tests.history.proofs.recorded_run import (
    copy_log,
    events_of,
    nth,
    play,
    process_run,
    record_run,
    small_config,
)
from unstable_stream.algorithms.buffer import StepBuffer
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
from unstable_stream.log.records import event_from_record, record_from_event
from unstable_stream.runs.history import read_history
from unstable_stream.services.streams.snapshots import FoldState, SnapshotPace, pack, run_name
from unstable_stream.services.workers.collector import event_for_collector, topics_of_collector
from unstable_stream.services.workers.collector_snapshot import CollectorSnapshots
from unstable_stream.services.workers.exploitability import ExploitabilitySchedule
from unstable_stream.services.workers.game_schedule import GameSchedule

pytestmark = pytest.mark.longer

RUN = "run-verified"
Verify = Callable[..., Awaitable[VerifyReport]]
Change = Callable[[Any], Event]
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


@pytest.fixture
async def log(recorded: Path, tmp_path: Path) -> AsyncIterator[LocalLog]:
    """A copy of that log, to be changed."""
    copy = tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(recorded)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    async with LocalLog.open(copy, synchronous="NORMAL") as opened:
        yield opened


@pytest.fixture
async def empty(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        yield opened


@pytest.fixture
def verify(recorded: Path, empty: LocalLog) -> Verify:
    """Verifies a copy of the recorded log with other values, made in the empty one."""

    async def changed(change: Callable[[StoredRecord], bytes], **options: Any) -> VerifyReport:
        async with LocalLog.open(recorded) as source:
            await copy_log(source, empty, change)
        return await verify_run(empty, RUN, **options)

    return changed


def by_name(report: VerifyReport) -> dict[str, Check]:
    return {check.name: check for check in report.checks}


def differing(report: VerifyReport) -> dict[str, int]:
    return {check.name: check.differing for check in report.checks if check.differing}


def assert_verified(report: VerifyReport) -> dict[str, Check]:
    assert report.ok, report.problems
    return by_name(report)


async def test_a_truthful_run_verifies(log: LocalLog) -> None:
    checks = assert_verified(await verify_run(log, RUN))
    counts = {kind: len(await events_of(log, RUN, kind)) for kind in (Trajectory, Rating, Step)}
    assert checks["games"].compared == checks["game starts"].compared == 45
    assert checks["trajectories"].compared == counts[Trajectory] > 30
    assert checks["ratings"].compared == counts[Rating] > 100
    assert checks["steps"].compared == counts[Step] > 100
    assert checks["updates"].compared == 3
    assert checks["snapshots"].compared >= 2, "one of each processor that had records"
    used, steps = checks["steps used"], checks["steps"]
    assert used.compared > 3 * 20, "drops are counted too"
    assert used.compared + used.pending == steps.compared
    assert not any(check.pending for check in checks.values() if check.name != "steps used")
    updates = await events_of(log, RUN, LearnerUpdate)
    reasons = {drop.reason for update in updates for drop in update.dropped}
    assert reasons == {"overflow", "stale", "truncated"}, "drops of every kind are among what was verified"


async def test_a_snapshot_is_held_against_a_fold_from_the_beginning(log: LocalLog) -> None:
    scope = f"rating-processor/{RUN}/game-outcomes/0"
    saved = await log.saved(scope)
    name = run_name(RUN)
    run = msgspec.json.decode(zlib.decompress(saved[name]), type=FoldState)
    model, rated = next(iter(run.state["ratings"]["*"].items()))
    rated[0] += 1e-9

    async def verified(states: dict[str, bytes]) -> VerifyReport:
        async with (await log.producer("test")).transaction() as transaction:
            await transaction.save(scope, states)
        return await verify_run(log, RUN, games=False)

    report = await verified({name: pack(run.position, run.digest, run.state)})
    assert differing(report) == {"snapshots": 1}
    (found,) = by_name(report)["snapshots"].first
    assert found.where == f"snapshot {scope} of offset {run.position}"
    assert found.field == f"$.ratings.*.{model}[0]"
    # Without it there is nothing wrong: it can be deleted at any time.
    assert_verified(await verified(dict.fromkeys(saved, b"")))


async def test_the_collectors_snapshot_is_held_against_a_fold_from_the_beginning(log: LocalLog) -> None:
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
    recorded: Path, empty: LocalLog
) -> None:
    def elsewhere(event: RunStarted) -> Event:
        pool = event.config["model_pool"] | {"sample_mode": "a_module_of_another_machine:pick"}
        return replace(event, config=event.config | {"model_pool": pool})

    async with LocalLog.open(recorded) as source:
        await copy_log(source, empty, nth(0, RunStarted, elsewhere))
    topics = topics_of_collector((await read_history(empty)).run(RUN).config())
    for states, gone in (({}, 0), ({"state": b"anything"}, 1)):
        async with (await empty.producer("test")).transaction() as transaction:
            await transaction.save(f"collector/{RUN}/{'+'.join(topics)}/all", states)
        assert assert_verified(await verify_run(empty, RUN, games=False))["collector snapshot"].gone == gone


@pytest.mark.parametrize("prove", [audit_run, verify_run])
@pytest.mark.parametrize("name", ["nope", RUN[:-1]])
async def test_what_is_no_whole_id_is_no_run(log: LocalLog, name: str, prove: Callable[..., Any]) -> None:
    with pytest.raises(RunError, match=f"no run '{name}' in this log"):
        await prove(log, name)


async def test_books_that_do_not_balance_fail_though_all_that_is_there_follows_from_its_causes(
    log: LocalLog,
) -> None:
    lost = made(GameAbandoned, run_id=RUN, game_id="g", game_index=45, reason="")
    await log.append([record_from_event(lost)])
    report = await verify_run(log, RUN, games=False)
    assert report.audit.games["train"].finished == 45
    assert differing(report) == {}
    assert not report.ok
    assert report.problems == (await audit_run(log, RUN)).problems
    assert report.problems[0].endswith("game g ended, but never started")
    assert report.problems[0].startswith("game never started: games[0]@")
    assert report.verdict == "0 difference(s), 2 problems of the ledger"
    assert msgspec.json.decode(report.to_json())["clean"] is False


def _metric(event: LearnerUpdate) -> Event:
    return replace(event, metrics={**event.metrics, "reward_mean": 9.0})


def _observation(event: Trajectory) -> Event:
    return replace(event, turns=(replace(event.turns[0], observation="a nicer board"), *event.turns[1:]))


def _not_finite(event: Step) -> Event:
    return replace(event, logprobs=pack_floats([math.nan] * len(unpack_floats(event.logprobs))))


def _reason_of_drop(event: LearnerUpdate) -> Event:
    assert event.dropped[0].reason == "overflow"
    return replace(event, dropped=(DroppedStep(event.dropped[0].step_id, "stale"), *event.dropped[1:]))


def _move(event: GameOutcome) -> Event:
    first = event.actions[0]
    return replace(event, actions=(Action(first.seat, "[nonsense]", first.valid), *event.actions[1:]))


def _tokens(event: Step) -> Event:
    return replace(event, completion_token_ids=bytes(len(event.completion_token_ids)))


@pytest.mark.parametrize(
    ("number", "kind", "change", "found", "says"),
    [
        (2, Step, lambda e: replace(e, final_reward=e.final_reward + 0.25), ["steps"], "$.final_reward is "),
        (2, Step, _tokens, ["steps"], "$.completion_token_ids is "),
        (2, Step, lambda e: replace(e, reward=e.reward + 0.25), ["steps", "updates"], "$.reward is "),
        (2, Step, _not_finite, ["steps", "updates"], "$.logprobs is "),
        (2, Rating, lambda e: replace(e, mu=e.mu + 1e-9), ["ratings"], "$.mu is "),
        (2, LearnerUpdate, lambda e: replace(e, step_ids=e.step_ids[::-1]), ["updates"], "$.step_ids[0] is "),
        (2, LearnerUpdate, _metric, ["updates"], "$.metrics.reward_mean is 9.0, recomputed "),
        (0, LearnerUpdate, _reason_of_drop, ["updates"], '$.dropped[0][1] is "stale", recomputed "overflow"'),
        (2, Trajectory, _observation, ["trajectories"], "$.turns[0].observation is "),
        (2, GameStarted, lambda e: replace(e, seed=e.seed + 1), ["game starts"], "$.seed is "),
        (2, GameOutcome, lambda e: replace(e, reason_text="because"), ["games"], "$.reason_text is "),
        (2, GameOutcome, lambda e: replace(e, num_turns=e.num_turns + 1), ["games"], "$.num_turns is "),
        (4, GameOutcome, _move, ["games"], "played again, seat 0 is asked for"),
        # A game that cannot be played again condemns no trajectory.
        (4, GameOutcome, lambda e: replace(e, actions=e.actions[:1]), ["games"], "played again, seat"),
    ],
)
async def test_one_changed_value_is_named_with_its_place(
    verify: Verify,
    number: int,
    kind: type[Event],
    change: Callable[[Any], Event],
    found: list[str],
    says: str,
) -> None:
    before: list[Event] = []

    def remember(event: Event) -> Event:
        before.append(event)
        return change(event)

    report = await verify(nth(number, kind, remember))
    assert sorted(differing(report)) == found
    assert not report.ok
    (difference,) = by_name(report)[found[0]].first
    (original,) = before
    assert difference.event_id == original.event_id
    assert difference.where.startswith(f"{kind.TOPIC}[")
    assert str(difference).startswith(difference.where)
    assert says in str(difference)
    assert difference.recorded != difference.recomputed or difference.field is None
    body = msgspec.json.decode(encode_event(original))
    field = (difference.field or "").removeprefix("$.")
    if field in body:
        assert difference.recomputed == msgspec.json.encode(body[field]).decode()
    if kind is Step and "updates" in found:
        (update,) = by_name(report)["updates"].first
        expected = "$.metrics.reward_mean is" if "reward" in says else "a log-probability that is not finite"
        assert expected in str(update), "of the batch that it was drawn for"


async def test_a_changed_result_shows_in_all_that_follows_from_it(verify: Verify) -> None:
    def other_result(event: GameOutcome) -> GameOutcome:
        return replace(event, seats=(replace(event.seats[0], rank=9), *event.seats[1:]))

    report = await verify(nth(0, GameOutcome, other_result))
    found = differing(report)
    assert found["games"] == 1
    assert by_name(report)["games"].first[0].field == "$.seats[0].rank"
    assert found["ratings"] > 10, "all later ratings rest on it"
    assert len(by_name(report)["ratings"].first) == 10, "only the first are shown"


async def test_a_record_that_is_gone_and_one_that_came_from_nowhere(verify: Verify, empty: LocalLog) -> None:
    gone = await verify(lambda r: b"{}" if str(r) == "ratings[1]@3" else r.value, games=False)
    assert differing(gone) == {"ratings": 1}
    stranger = made(Rating, event_id="stranger", run_id=RUN, env_id="*", model_uid="fixed-0", game_id="g")
    await empty.append([record_from_event(stranger)])
    report = await verify_run(empty, RUN, games=False)
    assert differing(report) == {"ratings": 2}
    absent, extra = by_name(report)["ratings"].first
    assert by_name(report)["ratings"].pending == 0
    assert absent.where.startswith("game-outcomes[0]@")
    assert "no record on ratings follows from it" in absent.what
    assert extra.event_id == "stranger"
    assert extra.what == "follows from nothing in the log"


async def test_other_settings_make_other_steps_and_draws(verify: Verify) -> None:
    def other_config(event: RunStarted) -> Event:
        rewards = event.config["rewards"]
        penalty = [{**rewards["step"][0], "penalty": -0.75}]
        return replace(event, config=event.config | {"rewards": {**rewards, "step": penalty}, "seed": 12})

    report = await verify(nth(0, RunStarted, other_config), games=False)
    found = differing(report)
    assert found["updates"] == 3
    assert 0 < found["steps"] < by_name(report)["steps"].compared, "only turns with an invalid move"


async def test_checkpoint_files(verify: Verify, empty: LocalLog, tmp_path: Path) -> None:
    files = {"good": "model.safetensors", "bad": "adapter_model.safetensors"}
    for name, file in files.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(name.encode())
    digest = "770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c"  # sha256 of "good"
    places = {1: "good", 2: "bad", 3: "absent"}

    def with_files(record: StoredRecord) -> bytes:
        event = event_from_record(record)
        if not isinstance(event, Checkpoint) or event.iteration not in places:
            return record.value
        place = places[event.iteration]
        parameters = "all" if place == "good" else "lora"
        return encode_event(replace(event, path=str(tmp_path / place), sha256=digest, parameters=parameters))

    check = by_name(await verify(with_files, games=False))["checkpoint files"]
    assert (check.compared, check.differing, check.gone) == (2, 1, 1)
    assert "bad/adapter_model.safetensors is another file" in check.first[0].what
    kinds = [line.split(":")[0] for line in (await audit_run(empty, RUN)).problems]
    assert kinds == ["checkpoint file altered", "checkpoint file missing"]


async def test_what_nobody_has_processed_yet_is_pending(empty: LocalLog) -> None:
    config = await record_run(empty, RUN, finish=False)
    done = await verify_run(empty, RUN)
    assert done.state == "running"
    assert not by_name(done)["steps"].pending
    for index in range(45, 49):
        await empty.append([record_from_event(event) for event in await play(RUN, config, index, 3)])
    checks = assert_verified(await verify_run(empty, RUN))
    assert checks["steps"].pending > 0
    assert checks["ratings"].pending > 0
    assert checks["steps"].compared == by_name(done)["steps"].compared
    assert checks["games"].compared == by_name(done)["games"].compared + 4
    await process_run(empty, RUN)
    caught_up = by_name(await verify_run(empty, RUN))
    assert caught_up["steps"].pending == 0
    assert caught_up["steps"].compared == checks["steps"].compared + checks["steps"].pending


async def test_a_result_that_a_processor_left_out_is_no_pending_one(empty: LocalLog) -> None:
    config = await record_run(empty, RUN, finish=False)
    started, *ended = await play(RUN, config, 100, 3)
    await empty.append([record_from_event(event) for event in (started, *ended)])
    # The positions say it has been processed, but nothing came of it.
    for group, topic in (("reward-processor", "trajectories"), ("rating-processor", "game-outcomes")):
        producer = await empty.producer("liar")
        async with producer.transaction() as transaction:
            await transaction.commit_positions(f"{group}/{RUN}", await empty.end_offsets(topic))
        await producer.close()
    report = await verify_run(empty, RUN)
    assert set(differing(report)) == {"steps", "ratings"}
    assert not any(check.pending for check in report.checks if check.name != "steps used")


async def test_steps_past_their_retention_are_gone_not_wrong(empty: LocalLog) -> None:
    await record_run(empty, RUN)
    whole = by_name(await verify_run(empty, RUN, games=False))["steps"].compared
    await empty.delete_before(await empty.offsets_for_time("steps", 86_400_000))
    checks = assert_verified(await verify_run(empty, RUN, games=False))
    assert checks["steps"].gone > 0
    assert checks["steps"].compared + checks["steps"].gone == whole
    assert checks["updates"].skipped == "steps that were drawn from are past the topic's retention"


async def test_a_learner_that_was_restarted_draws_what_can_be_drawn_again(empty: LocalLog) -> None:
    settings_ = small_config(buffer={"max_staleness": None})
    await record_run(empty, RUN, settings_, hosted=False, reads=(500, 500, 5), restart_after=2, games=20)
    _, second, third = (update.positions for update in await events_of(empty, RUN, LearnerUpdate))
    assert sum(third.values()) < sum(second.values()), "the new learner drew before it had read all again"
    assert_verified(await verify_run(empty, RUN, games=False))


async def test_a_step_is_given_once_to_the_buffer_that_is_drawn_from(
    empty: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    class Counted(StepBuffer):
        def extend(self, steps: Iterable[Step]) -> None:
            fresh = list(steps)
            given.extend(step.event_id for step in fresh)
            super().extend(fresh)

    monkeypatch.setattr("unstable_stream.history.proofs.recompute.StepBuffer", Counted)
    await record_run(empty, RUN, small_config(), hosted=False, games=20)
    checks = assert_verified(await verify_run(empty, RUN, games=False))
    assert checks["updates"].compared > 1
    assert len(given) == len(set(given)) > 0


async def test_a_fork_counts_its_updates_on_from_its_parents(empty: LocalLog) -> None:
    config = small_config(learner={"iterations": 5})
    await record_run(empty, RUN, config, hosted=False, parent_update=3)
    assert assert_verified(await verify_run(empty, RUN, games=False))["updates"].compared == 2


@pytest.mark.slow
async def test_several_processes_find_the_same(verify: Verify, empty: LocalLog) -> None:
    alone = await verify(nth(30, GameOutcome, lambda event: replace(event, reason_text="because")))
    together = await verify_run(empty, RUN, jobs=2)
    assert differing(alone) == {"games": 1}
    assert together.to_json() == alone.to_json()


def _chosen(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(values)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sections=_chosen(
        seed=st.integers(0, 1000),
        buffer=_chosen(
            strategy=st.sampled_from(["random", "fifo", "prioritised", "prioritised(exponent=2.0)"]),
            max_staleness=st.none() | st.integers(0, 2),
            max_buffer_size=st.integers(40, 60),  # at least the steps that may be pending, twice a batch
        ),
        learner=_chosen(batch_size=st.integers(1, 20), mini_batch_size=st.just(1)),
        algorithm=_chosen(truncated_turns=st.sampled_from(["train", "mask", "drop"])),
        collector=_chosen(filter_opponent_invalid=st.booleans(), invalid_moves_allowed=st.integers(0, 3)),
        rewards=_chosen(step_texts=st.booleans()),
    ),
    reads=st.lists(st.sampled_from([5, 25, 500]), min_size=1, max_size=3),
    restart=st.integers(0, 2),
)
def test_any_run_verifies(
    tmp_path_factory: pytest.TempPathFactory, sections: dict[str, Any], reads: list[int], restart: int
) -> None:
    config = small_config(**sections)

    async def check() -> VerifyReport:
        path = tmp_path_factory.mktemp("any") / "log.sqlite"
        async with LocalLog.open(path, synchronous="NORMAL") as log:
            await record_run(log, RUN, config, games=20, hosted=False, reads=reads, restart_after=restart)
            return await verify_run(log, RUN)

    assert assert_verified(asyncio.run(check()))["updates"].compared == 3


async def test_on_any_log(any_log: EventLog) -> None:
    run_id = f"run-{secrets.token_hex(6)}"
    await record_run(any_log, run_id, small_config(learner={"iterations": 1}), games=12, finish=False)
    checks = assert_verified(await verify_run(any_log, run_id))
    assert checks["steps"].compared > 20
    assert checks["updates"].compared == 1
    first = (await events_of(any_log, run_id, Step))[0]
    await any_log.append([record_from_event(replace(first, final_reward=7.0))])
    changed = await verify_run(any_log, run_id, games=False)
    assert differing(changed) == {"steps": 1}
    assert by_name(changed)["steps"].first[0].event_id == first.event_id
