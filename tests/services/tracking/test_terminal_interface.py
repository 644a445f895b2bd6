"""What the terminal shows of a run: the same opponents in the same place, and at once what died."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests.history.proofs.test_audit import history
from tests.reward_transformations.trajectories import make_trajectory, make_turn
from tests.services.workers.test_game_schedule import config, round_robin
from unstable_stream.events import (
    OVERALL,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Metrics,
    Trajectory,
    decode_event,
)
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topics import TOPICS_DIR, load_topics
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.run_view import RunView
from unstable_stream.services.tracking.terminal_interface import Stage, plain_line, render, watch_run
from unstable_stream.services.workers.collector_reports import parse_gpus

CONFIG = config(evaluation={"opponents": [{"name": "random-legal"}, {"name": "first-legal"}]})
RUN = "run-test"


def evaluated(number: int, opponent: str, update: int, reward: float) -> GameOutcome:
    outcome = next(event for event in history() if isinstance(event, GameOutcome))
    uid = f"ckpt-{update:06d}"
    seat = msgspec.structs.replace(outcome.seats[0], seat=0, model_uid=uid, policy_version=update)
    seats = (
        msgspec.structs.replace(seat, reward=reward),
        msgspec.structs.replace(seat, seat=1, model_uid=opponent, reward=-reward),
    )
    return msgspec.structs.replace(
        outcome,
        game_id=f"game-{number}",
        game_index=number,
        split="eval",
        evaluated_uid=uid,
        seats=seats,
    )


def test_opponents_keep_their_places_whoever_played_last() -> None:
    view = RunView(RUN, CONFIG)
    first = [("first-legal", 1.0), ("random-legal", 1.0)]
    for number, (opponent, reward) in enumerate(first):
        view.apply(evaluated(number, opponent, 0, reward))
    line = plain_line(view, 12, "playing the first games")
    assert line.endswith("won at update 0: 100% of 1 vs random-legal, 100% of 1 vs first-legal")
    view.apply(evaluated(2, "first-legal", 2, -1.0))
    line = plain_line(view, 12, "playing the first games")
    assert line.endswith("won 100% of 1 vs random-legal at update 0, 0% of 1 vs first-legal at update 2")


def test_the_time_left_is_told_by_the_pace_of_updates_and_not_of_loading() -> None:
    view = RunView(RUN, CONFIG)
    first = next(event for event in history() if isinstance(event, LearnerUpdate))
    view.apply(msgspec.structs.replace(first, update=1, occurred_at_ms=600_000))
    assert view.seconds_left() is None
    view.apply(msgspec.structs.replace(first, update=3, occurred_at_ms=620_000))
    assert view.seconds_left() == 10.0 * (CONFIG.learner.iterations - 3)


def test_it_says_who_waits_for_the_store_of_checkpoints_until_it_answers() -> None:
    made = config().model_dump(mode="json")
    settings = parse_config({**made, "learner": {**made["learner"], "ckpt_root": "s3://bucket/runs"}})
    view = RunView(RUN, settings)
    for service, waited in (("learner", 12.0), ("engine-0", 0.0)):
        view.apply(
            Metrics(
                event_id=service,
                run_id=RUN,
                occurred_at_ms=1,
                source=service,
                values={f"stores/{service}/wait_s": waited},
            )
        )
    console = Console(width=120)
    with console.capture() as shown:
        console.print(render(view, 12))
    assert "learner waits for s3://bucket/runs, which does not answer; its log says why" in shown.get()
    assert "engine-0 waits" not in shown.get()
    view.apply(
        Metrics(
            event_id="end",
            run_id=RUN,
            occurred_at_ms=2,
            source="learner",
            values={"stores/learner/wait_s": 0.0},
        )
    )
    with console.capture() as shown:
        console.print(render(view, 12))
    assert "waits for" not in shown.get()


def test_of_a_tournament_the_games_that_are_left_are_told() -> None:
    settings = round_robin("a", "b", games=100)
    view = RunView(RUN, settings)
    for number in range(10):
        game = msgspec.structs.replace(evaluated(number, "b", 0, 1.0), evaluated_uid=None)
        view.apply(msgspec.structs.replace(game, occurred_at_ms=time.time_ns() // 1_000_000))
    assert "10 of 100 games" in plain_line(view, 12, "")
    console = Console(width=100)
    with console.capture() as shown:
        console.print(render(view, 12))
    assert "10 of 100 games" in shown.get()
    assert "left" in shown.get()
    assert "update" not in shown.get()


def test_until_the_first_game_the_line_says_what_is_waited_for() -> None:
    view = RunView(RUN, CONFIG)
    assert plain_line(view, 12.3, "loading the model: engine") == "[  12 s] loading the model: engine"
    view.apply(next(event for event in history() if isinstance(event, GameStarted)))
    assert "update 0/" in plain_line(view, 14, "loading the model: engine")


def pool_metrics(at_ms: int, values: dict[str, float]) -> Metrics:
    return Metrics(
        event_id=f"pool-{at_ms}", run_id=RUN, occurred_at_ms=at_ms, source="model-pool", values=values
    )


def test_format_matches_and_exploration_are_shown() -> None:
    view = RunView(RUN, CONFIG)
    turns = [
        make_turn(0),
        make_turn(1),
        make_turn(2, format_feedback={"correct_answer_format": False}),
        make_turn(3, valid=False),
    ]
    view.apply(make_trajectory(run_id=RUN, turns=turns))
    view.apply(make_trajectory(1, run_id=RUN, turns=turns[2:], split="eval"))
    newest = {
        "model-pool/A/matches/random-legal": 30.0,
        "model-pool/B/matches/random-legal": 12.0,
        "model-pool/novelty/random-legal": 0.25,
        "model-pool/A/coverage": 1000.0,
        "model-pool/B/coverage": 234.0,
    }
    view.apply(pool_metrics(2, newest))
    view.apply(pool_metrics(1, {}))  # an older one, read later
    rating = decode_event((TOPICS_DIR / "golden" / "rating.v1.json").read_bytes())
    view.apply(msgspec.structs.replace(rating, run_id=RUN, env_id=OVERALL, model_uid="random-legal", games=7))
    console = Console(width=120)
    with console.capture() as shown:
        console.print(render(view, 3.0))
    words = shown.get().replace("│", " ").split()
    told = " ".join(words)
    assert "format 75%, legal 75%" in told
    assert "exploration 1,234 sequences of moves" in told
    after = words.index("random-legal")
    assert words[after + 3 : after + 6] == ["7", "42", "25%"]


def test_each_engine_and_each_gpu_has_a_line_and_a_narrow_terminal_no_second_column() -> None:
    view = RunView(RUN, CONFIG)
    engines = {
        f"inference/engine-{n}/{name}": 10.0 * (n + 1) for n in (0, 1) for name in ("tok_s", "running")
    }
    gpus = parse_gpus("0, 87, 30720, 81559\n1, [N/A], 512, 1024\nno devices\n")
    for source, values in (("engine-0", engines), ("gpus", gpus)):
        view.apply(Metrics(event_id=source, run_id=RUN, occurred_at_ms=1, source=source, values=values))
    rows = {}
    for width in (140, 60):
        console = Console(width=width)
        with console.capture() as shown:
            console.print(render(view, 3.0, width=width))
        text = shown.get()
        assert "engine-0  10 tokens/s, 10 running" in text
        assert "engine-1  20 tokens/s, 20 running" in text
        assert "GPU 0  87% busy, 30.0 of 80 GiB" in text
        assert "GPU 1  0.5 of 1 GiB" in text
        lines = text.splitlines()
        rows[width] = [
            next(at for at, line in enumerate(lines) if what in line) for what in ("games played", "ladder")
        ]
    assert rows[140][0] == rows[140][1]
    assert rows[60][0] < rows[60][1]


@dataclass
class Dying:
    """A service as the launcher sees it."""

    name: str = "collector"
    pid: int | None = None
    restarts: int = 1
    trouble: str = "engine 0 died: RuntimeError: [no] memory; starting it again (1 of 5)"


def test_the_dashboard_shows_what_died_and_of_what() -> None:
    console = Console(width=100)
    with console.capture() as shown:
        console.print(render(RunView(RUN, CONFIG), 3.0, {"collector": Dying()}, "starting Ray"))
    assert Dying().trouble in shown.get()
    assert "0:03, starting Ray" in shown.get()


async def test_without_a_terminal_it_is_told_once_and_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        services = {"collector": Dying(trouble="")}
        watching = asyncio.ensure_future(watch_run(log, RUN, CONFIG, services, stage=Stage()))
        printed = ""
        async with asyncio.timeout(60):
            while "update 0/" not in printed:
                await asyncio.sleep(0.01)
                printed += capsys.readouterr().err
            services["collector"].trouble = Dying().trouble
            while Dying().trouble not in printed:
                await asyncio.sleep(0.01)
                printed += capsys.readouterr().err
        watching.cancel()
        await asyncio.wait([watching])
    assert (printed + capsys.readouterr().err).count(Dying().trouble) == 1


def played(*, legal: bool, turns: int, number: int) -> Trajectory:
    seat = make_trajectory(turns=[make_turn(index, valid=legal) for index in range(turns)])
    return msgspec.structs.replace(seat, event_id=str(number), run_id=RUN, split="train", trained=True)


def shown_text(view: RunView) -> str:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(render(view, 12))
    return " ".join(shown.get().split())


def test_until_the_first_update_it_is_told_how_many_of_its_turns_are_played() -> None:
    needed = int(CONFIG.learner.batch_size * CONFIG.learner.batch_delay_buffer)
    view = RunView(RUN, CONFIG)
    view.apply(next(event for event in history() if isinstance(event, GameStarted)))
    assert "for the first update" not in shown_text(view) + plain_line(view, 12, "")
    view.apply(played(legal=True, turns=2, number=1))
    assert f"2 of {needed} turns for the first update" in shown_text(view)
    assert plain_line(view, 12, "").endswith(f"2 of {needed} turns for the first update")
    first = next(event for event in history() if isinstance(event, LearnerUpdate))
    view.apply(msgspec.structs.replace(first, update=1))
    assert "for the first update" not in shown_text(view) + plain_line(view, 12, "")


def test_a_policy_without_one_legal_move_is_told_of() -> None:
    view = RunView(RUN, CONFIG)
    for number in range(32):
        assert "was a legal move" not in shown_text(view)
        view.apply(played(legal=False, turns=2, number=number))
    assert "none of 64 turns and more was a legal move" in shown_text(view)
    view.apply(played(legal=True, turns=1, number=99))
    assert "was a legal move" not in shown_text(view)
