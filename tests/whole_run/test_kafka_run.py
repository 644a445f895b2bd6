"""The same run on a real Kafka: services elsewhere, a broker lost, every process killed. Nothing is lost."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.conftest import free_port_pair, skip_without_kafka
from tests.processes import command_of, until
from tests.whole_run.processes import History, LaunchedRun, StandingService, rows, run_command
from unstable_stream.events import (
    Event,
    GameOutcome,
    LearnerUpdate,
    Rating,
    RecordRejected,
    RunFinished,
    Step,
    Trajectory,
)

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(1500)]

UPDATES = 4
KILLED_AT_ONCE = (
    ("service learner", "service archiver", "ray::EngineActor"),
    ("service collector", "service processors", "ray::RolloutActor", "ray::LearnerActor"),
)
"""Several at a time: each return on Kafka takes a while."""
SERVICES_ELSEWHERE = 'external=["processors", "archiver"]'
_GAMES = "SELECT count(*) AS games FROM game_outcomes"


@pytest.fixture
def one_broker(tmp_path: Path) -> Iterator[KafkaCluster]:
    """A Kafka that holds this test's run and nothing else."""
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", port=free_port_pair()) as cluster:
        yield cluster


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[KafkaCluster]:
    """Every record is on all three, and acknowledged when two have it."""
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", brokers=3, port=free_port_pair(3)) as cluster:
        yield cluster


def progress_beyond(history: History) -> Callable[[History], bool]:
    """Whether a game was finished and an update made since now."""
    games, updates = len(history.of(GameOutcome)), len(history.of(LearnerUpdate))
    return lambda seen: len(seen.of(GameOutcome)) > games and len(seen.of(LearnerUpdate)) > updates


async def assert_nothing_lost_or_twice(run: LaunchedRun, updates: int) -> str:
    """Check the whole log of a completed run; return the run's id."""
    history = run.history
    end = history.of(RunFinished)[-1]
    assert (end.outcome, end.updates) == ("completed", updates)
    assert history.of(RecordRejected) == []
    assert {update.update for update in history.of(LearnerUpdate)} == set(range(1, updates + 1))
    published: Sequence[type[Event]] = (Step, LearnerUpdate, Rating)
    for kind in published:
        # Their writers publish with positions or under a fenced producer, so not even redelivery is allowed.
        ids = [event.event_id for event in history.of(kind)]
        assert len(ids) == len(set(ids)) > 0
    rated = [r.games for r in history.of(Rating) if r.env_id != "*" and r.model_uid == "random-legal"]
    assert rated == list(range(1, len(rated) + 1))
    assert "balanced" in await run.prove(end.run_id)
    return end.run_id


@pytest.mark.long
async def test_services_elsewhere_and_a_broker_die_and_others_take_over(
    tmp_path: Path, three_brokers: KafkaCluster
) -> None:
    log = f"kafka://{three_brokers.bootstrap}"
    shelf = tmp_path / "archive"
    created = run_command(tmp_path, "topics", "create", log=log)
    assert created.returncode == 0, created.stderr
    settings = (f"learner.iterations={4 * UPDATES}", SERVICES_ELSEWHERE)
    with ExitStack() as services:
        services.enter_context(StandingService(tmp_path / "processors-2", log, "processors"))
        victims = (
            StandingService(tmp_path / "processors-1", log, "processors"),
            StandingService(shelf, log, "archive", "--follow"),
        )
        for victim in victims:
            services.callback(victim.kill)
        async with LaunchedRun.train(tmp_path / "run", *settings, log=log) as run:
            await run.until("the first update", lambda seen: bool(seen.of(LearnerUpdate)))
            during = rows(shelf, _GAMES)
            names = {command_of(process) for process in run.look()}
            for victim in victims:
                victim.kill()
            assert during[0]["games"] != 0, "the archive answers while the run writes"
            assert not [name for name in names if "service processors" in name or "service archiver" in name]
            await run.until("progress with one of two processors", progress_beyond(run.history))
            three_brokers.stop(1, signal.SIGKILL)
            with StandingService(shelf, log, "archive", "--follow"):
                await run.until("progress on two brokers", progress_beyond(run.history))
                assert await run.end() == 0, run.told()
                finished = len({outcome.game_id for outcome in run.history.of(GameOutcome)})
                await until(lambda: rows(shelf, _GAMES)[0]["games"] == finished)
            assert three_brokers.pid(1) is None
            assert run.left_behind() == []
            run_id = await assert_nothing_lost_or_twice(run, 4 * UPDATES)
            events = run.history.events
    games: dict[str, set[str]] = {}
    for event in events:
        if isinstance(event, GameOutcome):
            games.setdefault(event.split, set()).add(event.game_id)
    assert {
        row["split"]: row["games"]
        for row in rows(shelf, "SELECT split, count(*) AS games FROM game_outcomes GROUP BY split")
    } == {split: len(ids) for split, ids in games.items()}
    trained = rows(shelf, "SELECT update, trained_steps AS steps FROM updates ORDER BY update")
    assert trained == [{"update": update, "steps": 96} for update in range(1, 4 * UPDATES + 1)]
    (turns,) = rows(shelf, "SELECT count(*) AS turns FROM turns")
    played = {event.event_id: event for event in events if isinstance(event, Trajectory)}
    assert turns["turns"] == sum(len(event.turns) for event in played.values())
    (state,) = rows(shelf, "SELECT run_id, state FROM runs")
    assert state == {"run_id": run_id, "state": "completed"}


async def test_every_process_dies_once_and_the_run_is_stopped_resumed_and_completes(
    tmp_path: Path, one_broker: KafkaCluster
) -> None:
    log = f"kafka://{one_broker.bootstrap}"
    data = tmp_path / "run"
    settings = (f"learner.iterations={2 * UPDATES}", "learner.save_every=2")
    async with LaunchedRun.train(data, *settings, log=log) as run:
        killed: list[int] = []
        for victims in KILLED_AT_ONCE:
            await run.until(f"progress before killing {victims}", progress_beyond(run.history))
            killed += [await run.kill(victim) for victim in victims]
        assert len(set(killed)) == sum(len(victims) for victims in KILLED_AT_ONCE)
        await run.until("progress after that", progress_beyond(run.history))
        run.popen.send_signal(signal.SIGTERM)
        assert await run.end() == 130, run.told()
        assert run.left_behind() == []
        (stopped,) = run.history.of(RunFinished)
        assert (stopped.outcome, stopped.reason) == ("stopped", "SIGTERM")
        told = run.stderr.read_text()
        go_on = f"go on with: unstable-stream train --resume {stopped.run_id} --data {data} --log {log}\n"
        assert go_on in told
        assert "Traceback" not in told

        async with LaunchedRun.resume(run, stopped.run_id) as resumed:
            assert await resumed.end() == 0, resumed.told()
            assert resumed.left_behind() == []
        await assert_nothing_lost_or_twice(run, 2 * UPDATES)
        (games,) = rows(run.data, _GAMES)
        assert games["games"] == len({outcome.game_id for outcome in run.history.of(GameOutcome)})
