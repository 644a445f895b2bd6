"""A run is the same whoever plays it: on Ray, in one process, or first the one and then the other."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import unstable_stream as us
from tests.services.workers.test_game_schedule import config as small_config
from tests.tiers import chosen
from tests.whole_run.processes import DEADLINE_S
from unstable_stream.archive import query
from unstable_stream.errors import AdapterError, ConfigError, ServiceError
from unstable_stream.events import (
    AdapterProof,
    Event,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    RunFinished,
    RunResumed,
    RunStarted,
    Step,
    checkpoint_uid,
)
from unstable_stream.history.proofs.reports import AuditReport, VerifyReport
from unstable_stream.history.proofs.verify import audit_run, verify_run
from unstable_stream.history.views.cost import run_cost
from unstable_stream.inference.transformers.lora import AdaptedLinear
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import read_to_end, readable_events
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.launcher import Backend, Launch, launch
from unstable_stream.services.launch.stopping import Stop
from unstable_stream.services.tracking.service_reports import Service

pytestmark = [pytest.mark.longer, pytest.mark.timeout(600)]

UPDATES = 3
ONE_UPDATE = {"iterations": 1, "batch_size": 48, "mini_batch_size": 48}
ON_RAY = pytest.mark.slow


def config(**keys: Any) -> RunConfig:
    defaults = {
        "name": "backends",
        "seed": 3,
        "sampling": {"max_tokens": 4},
        "lora": {"lora_rank": 8, "lora_alpha": 16},
        "collector": {"num_workers": 16},
        "evaluation": {"max_eval_games_per_ckpt": 4, "first_last_games": 4},
        "learner": {"iterations": UPDATES, "batch_size": 48, "mini_batch_size": 48},
    }
    return small_config(**{**defaults, **keys})


class StopAfterUpdate:
    """A watcher that stops its run after the first update."""

    def __init__(self) -> None:
        self.stop = Stop()

    async def __call__(
        self, log: EventLog, run_id: str, settings: RunConfig, services: Mapping[str, Service]
    ) -> None:
        consumer = await log.consumer([LearnerUpdate.TOPIC])
        try:
            while not self.stop.asked.is_set():
                for event in readable_events(await consumer.poll(timeout_s=0.1)):
                    if event.run_id == run_id:
                        self.stop.ask("it has made an update")
        finally:
            await consumer.close()


async def recorded(data: DataDir, run_id: str) -> list[Event]:
    topics = ("runs", "games", "game-outcomes", "steps", "learner-updates", "checkpoints")
    async with opened_log("local", data.log) as log:
        records = [record async for record in read_to_end(log, topics)]
    return [event for event in readable_events(records) if event.run_id == run_id]


def ends(events: list[Event]) -> list[RunFinished]:
    return [event for event in events if isinstance(event, RunFinished)]


async def proven(data: DataDir, run_id: str) -> tuple[AuditReport, VerifyReport]:
    """What audit and verify say of a run of which they find nothing wrong."""
    async with opened_log("local", data.log) as log:
        audited, verified = await audit_run(log, run_id), await verify_run(log, run_id)
    assert audited.problems == ()
    assert verified.ok, verified.to_json()
    return audited, verified


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("inline", "inline"),
        pytest.param("ray", "inline", marks=[ON_RAY, pytest.mark.long]),
        pytest.param("inline", "ray", marks=[ON_RAY, pytest.mark.long]),
    ],
)
async def test_a_run_stopped_in_its_middle_goes_on_and_adds_up(
    tmp_path: Path, first: Backend, second: Backend
) -> None:
    data = DataDir(tmp_path)
    watcher = StopAfterUpdate()
    measured = {"games": ["openspiel:kuhn_poker"], "every": 2, "template": "kuhn-board"}
    settings = config(
        evaluation={**config().evaluation.model_dump(mode="json"), "exploitability": measured},
        engine={"type": "transformers", "dtype": "float32"},
    )
    spent_before_s = time.process_time()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    stages: list[str] = []
    begun = await launch(
        settings, data, backend=first, watch=watcher, stop=watcher.stop, progress=stages.append
    )
    assert begun.outcome == "stopped"
    assert (stages[0], stages[-1]) == ("checking the configuration", "loading the model")
    assert any("on the CPU; memory" in stage for stage in stages)
    assert ("starting Ray" in stages) == (first == "ray")
    (stopped,) = ends(await recorded(data, begun.run_id))
    assert stopped.outcome == "stopped"
    assert 1 <= stopped.updates < UPDATES, "stopped too late for this test to mean anything"
    await proven(data, begun.run_id)

    done = await launch(settings, data, resume=begun.run_id, backend=second)
    assert done == Launch(begun.run_id, "completed")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    events = await recorded(data, done.run_id)
    audited, verified = await proven(data, done.run_id)
    assert audited.updates == UPDATES
    compared = {check.name: check.compared for check in verified.checks}
    assert compared["updates"] == compared["checkpoint files"] == UPDATES
    assert [e.config["backend"] for e in events if isinstance(e, RunStarted | RunResumed)] == [first, second]
    assert [end.outcome for end in ends(events)] == ["stopped", "completed"]
    assert [e.update for e in events if isinstance(e, LearnerUpdate)] == [1, 2, 3]
    evaluated = {e.evaluated_uid for e in events if isinstance(e, GameOutcome) and e.split == "eval"}
    assert evaluated == {checkpoint_uid(0), checkpoint_uid(2), checkpoint_uid(UPDATES)}
    distances = query(data.archive, "SELECT update, nash_conv > 0 FROM exploitability ORDER BY update").rows
    assert distances == [(0, True), (2, True), (UPDATES, True)]
    counts = query(
        data.archive,
        "SELECT (SELECT count(*) FROM game_outcomes), (SELECT count(*) FROM steps), (SELECT state FROM runs)",
    ).rows
    games, steps = (sum(isinstance(e, kind) for e in events) for kind in (GameOutcome, Step))
    assert [tuple(row) for row in counts] == [(games, steps, "completed")]
    if (first, second) == ("inline", "inline"):
        check_cost(data, done.run_id, events, time.process_time() - spent_before_s)


def check_cost(data: DataDir, run_id: str, events: list[Event], spent_s: float) -> None:
    """The cost of a run in this process that was stopped once, from its archive."""
    cost = run_cost(data.archive, run_id)
    assert cost.used is not None
    (whole,) = (part for part in cost.used.parts if part.part is None)
    parts = {part.part: part.cpu_s for part in cost.used.parts if part.part}
    assert (whole.process, whole.incarnations) == ("inline", 2)
    assert 0 < whole.cpu_s < spent_s, "no more than this process has used meanwhile"
    assert parts.keys() == {
        *("learner", "engine", "environments", "loading"),
        *("log", "archiver", "processors", "rest"),
    }
    assert all(seconds > 0 for part, seconds in parts.items() if part != "rest")
    # Reports are counters of threads and of the process, read one after the other.
    assert sum(parts.values()) == pytest.approx(whole.cpu_s, rel=0.02)
    assert cost.used.record_cpu_s == pytest.approx(parts["log"] + parts["archiver"] + parts["processors"])
    assert (cost.used.peak_memory_bytes or 0) > 10**8
    said = query(data.archive, "SELECT sum(completion_tokens), sum(latency_ms) / 1000 FROM turns").rows
    assert cost.sampled_tokens == said[0][0]
    assert cost.generation_s == pytest.approx(said[0][1])
    trained = [event.metrics["completion_tokens"] for event in events if isinstance(event, LearnerUpdate)]
    assert cost.trained_tokens == sum(trained)
    # Nothing is lost but of games that had no end when the run was stopped.
    (resumed,) = (event.occurred_at_ms for event in events if isinstance(event, RunResumed))
    before = [event for event in events if event.occurred_at_ms < resumed]
    began = {event.game_id: event.occurred_at_ms for event in before if isinstance(event, GameStarted)}
    ended = {event.game_id for event in before if isinstance(event, GameOutcome)}
    in_flight = began.keys() - ended
    assert query(data.archive, "SELECT fault, games, lost_s FROM faults").rows == [
        ("resumed", len(in_flight), cost.lost_s)
    ]
    assert 0 <= cost.lost_s <= sum(resumed - began[game] for game in in_flight) / 1000


async def test_beside_a_running_event_loop_on_a_thread(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a notebook does it: its own loop goes on, its signal handlers and its printing are its own."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    playing: dict[str, Launch] = {}

    here = asyncio.get_running_loop()
    answered: list[str] = []

    async def answer(run_id: str) -> None:
        answered.append(run_id)

    def ask(run_id: str) -> None:
        """In the run's thread, in the midst of the run: wait for the other loop."""
        asyncio.run_coroutine_threadsafe(answer(run_id), here).result(DEADLINE_S)

    def play() -> None:
        assert threading.current_thread() is not threading.main_thread()
        playing["run"] = asyncio.run(
            launch(config(learner=ONE_UPDATE), DataDir(tmp_path), backend="inline", on_start=ask)
        )

    work = asyncio.ensure_future(asyncio.to_thread(play))
    while not work.done():
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        await asyncio.wait([work], timeout=0.01)
    await work
    assert playing["run"].outcome == "completed"
    assert capfd.readouterr().out == ""
    assert answered == [playing["run"].run_id], "this loop went on while the run did"


FAILING = """
from pathlib import Path

BROKEN = Path(__file__).with_name("broken")


class FailsOnPurpose:
    def __call__(self, x, env_id=None):
        if BROKEN.exists():
            raise ValueError("this transformation is broken")
        return x
"""


async def test_the_error_of_a_component_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAILING, encoding="utf-8")
    broken = tmp_path / "broken"
    data = DataDir(tmp_path / "data")
    settings = config(learner=ONE_UPDATE, rewards={"final": [f"{tmp_path}/own.py:FailsOnPurpose"]})
    started: list[str] = []

    async def break_it(*_: object) -> None:
        broken.touch()  # once its configuration was checked

    with pytest.raises(ServiceError, match="this transformation is broken") as raised:
        await launch(settings, data, backend="inline", watch=break_it, on_start=started.append)
    (run_id,) = started
    assert raised.value.__notes__ == [
        f"resume it with: unstable-stream train --resume {run_id} --data {data.root}"
    ]
    (end,) = ends(await recorded(data, run_id))
    assert end.outcome == "failed"
    assert "this transformation is broken" in end.reason

    broken.unlink()
    assert (await launch(settings, data, resume=run_id, backend="inline")).outcome == "completed"
    await proven(data, run_id)


async def test_faust_is_refused_in_one_process_before_anything_is_written(tmp_path: Path) -> None:
    settings = config(log="kafka://127.0.0.1:9", processors={"runtime": "faust"})
    with pytest.raises(ConfigError, match=r'set processors.runtime="generic"'):
        await launch(settings, DataDir(tmp_path / "data"), backend="inline")
    assert not (tmp_path / "data").exists()


async def test_an_engine_that_forgets_adapters_plays_no_game_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters are loaded without a word of complaint, and what answers is the base model."""
    data = DataDir(tmp_path)
    settings = config(
        learner={"iterations": 9, "batch_size": 48, "mini_batch_size": 48, "learning_rate": 0.02}
    )
    monkeypatch.setattr(AdaptedLinear, "forward", lambda self, x: self.base(x))
    with pytest.raises(AdapterError, match="answers like the base model"):
        await launch(settings, data, backend="inline")
    async with opened_log("local", data.log) as log:
        records = [record async for record in read_to_end(log, ("checkpoints", "game-outcomes"))]
    events = list(readable_events(records))
    proofs = [event for event in events if isinstance(event, AdapterProof)]
    # Of the untrained policy there is nothing to prove: it is the base model.
    assert proofs[-1].result == "failed"
    failed = {proof.model_uid for proof in proofs if proof.result == "failed"}
    played = {seat.model_uid for event in events if isinstance(event, GameOutcome) for seat in event.seats}
    assert played
    assert not played & failed


# -- gone on with in another sampling mode: each game keeps the players that were drawn for it --------------


def training_games(events: list[Event]) -> Iterator[GameStarted]:
    return (event for event in events if isinstance(event, GameStarted) and event.split == "train")


def opponents(game: GameStarted) -> set[str]:
    """Return who plays besides the newest policy; mirror self-play has nobody."""
    return {seat.model_uid for seat in game.seats if not seat.trained}


@chosen("mode", ["fixed"], ("match-quality", "pfsp-hard"))
def test_a_change_of_the_mode_in_mid_run_is_recorded_and_holds_for_the_games_after_it(
    tmp_path: Path, mode: str
) -> None:
    data = DataDir(tmp_path)
    watcher = StopAfterUpdate()
    settings = config(
        backend="inline",
        model_pool={"sample_mode": "mirror", "fixed": [{"name": "random-legal"}]},
        engine={"type": "transformers", "dtype": "float32"},
    )
    begun = asyncio.run(launch(settings, data, watch=watcher, stop=watcher.stop))
    assert begun.outcome == "stopped"
    planned = {game.game_id: game for game in training_games(asyncio.run(recorded(data, begun.run_id)))}
    assert planned
    assert [game for game in planned.values() if opponents(game)] == [], "mirror self-play meets nobody else"

    run = us.open_run(begun.run_id, tmp_path).resume(sample_mode=mode, iterations=2 * UPDATES, live=False)

    assert run.state == "completed"
    events = asyncio.run(recorded(data, run.id))
    starts = {game.game_id: game for game in training_games(events)}
    drawn = [opponents(game) for game_id, game in starts.items() if game_id not in planned]
    assert len(drawn) > 10
    assert any(drawn), "somebody else is met now"
    assert mode != "fixed" or all(met == {"random-legal"} for met in drawn)
    # Those that the stop interrupted are played as they were drawn, by the rule of that time.
    assert {game_id: starts[game_id] for game_id in planned} == planned
    for outcome in (event for event in events if isinstance(event, GameOutcome) and event.split == "train"):
        played = [(seat.seat, seat.model_uid) for seat in outcome.seats]
        assert played == [(seat.seat, seat.model_uid) for seat in starts[outcome.game_id].seats]
    modes = [e.config["model_pool"]["sample_mode"] for e in events if isinstance(e, RunStarted | RunResumed)]
    assert modes == ["mirror", mode]
    assert us.open_run(run.id, tmp_path).config.model_pool.sample_mode == mode
    audited, verified = asyncio.run(proven(data, run.id))
    assert audited.updates == 2 * UPDATES
    (collector,) = (check for check in verified.checks if check.name == "collector snapshot")
    assert collector.compared == 1, "the snapshot of the last collector was made with the new mode"
