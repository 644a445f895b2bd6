"""What the terminal shows of a run: the same opponents in the same place, and at once what died."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from tests.builders import made
from tests.history.proofs.test_audit import started, update
from tests.model_pool.outcomes import make_outcome
from tests.reward_transformations.trajectories import make_trajectory, make_turn
from tests.services.workers.test_game_schedule import config, round_robin
from unstable_stream.events import OVERALL, GameOutcome, Metrics, Rating, checkpoint_uid
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.run_view import RunView
from unstable_stream.services.tracking.terminal_interface import Stage, plain_line, render, watch_run
from unstable_stream.services.workers.collector_reports import parse_gpus

CONFIG = config(evaluation={"opponents": [{"name": "random-legal"}, {"name": "first-legal"}]})
RUN = "run-test"


def evaluated(number: int, opponent: str, update: int, reward: float, **fields: Any) -> GameOutcome:
    uid = checkpoint_uid(update)
    seats = {0: (uid, reward), 1: (opponent, -reward)}
    game = {"env_id": "TicTacToe-v0-train", "split": "eval", "run_id": RUN, "evaluated_uid": uid, **fields}
    return make_outcome(number, seats, trained=(), parents={uid: None}, **game)


def text_of(view: RunView, *arguments: Any, width: int = 120) -> str:
    console = Console(width=width)
    with console.capture() as shown:
        console.print(render(view, 3.0, *arguments, width=width))
    return shown.get()


def words_of(view: RunView) -> str:
    return " ".join(text_of(view).replace("│", " ").split())


def metrics(source: str, values: dict[str, float], at_ms: int = 1) -> Metrics:
    return made(Metrics, source=source, occurred_at_ms=at_ms, values=values)


def test_opponents_keep_their_places_whoever_played_last() -> None:
    view = RunView(RUN, CONFIG)
    for number, opponent in enumerate(("first-legal", "random-legal")):
        view.apply(evaluated(number, opponent, 0, 1.0))
    line = plain_line(view, 12, "loading the model")
    assert line.endswith("won at update 0: 100% of 1 vs random-legal, 100% of 1 vs first-legal")
    view.apply(evaluated(2, "first-legal", 2, -1.0))
    line = plain_line(view, 12, "loading the model")
    assert line.endswith("won 100% of 1 vs random-legal at update 0, 0% of 1 vs first-legal at update 2")


def test_the_time_left_is_told_by_the_pace_of_updates_and_not_of_loading() -> None:
    view = RunView(RUN, CONFIG)
    view.apply(msgspec.structs.replace(update(1, [], []), occurred_at_ms=600_000))
    assert view.seconds_left() is None
    view.apply(msgspec.structs.replace(update(3, [], []), occurred_at_ms=620_000))
    assert view.seconds_left() == 10.0 * (CONFIG.learner.iterations - 3)


def test_it_says_who_waits_for_the_store_of_checkpoints_until_it_answers() -> None:
    view = RunView(RUN, config(learner={"ckpt_root": "s3://bucket/runs"}))
    view.apply(metrics("learner", {"stores/learner/wait_s": 12.0}))
    view.apply(metrics("engine-0", {"stores/engine-0/wait_s": 0.0}))
    shown = text_of(view)
    assert "learner waits for s3://bucket/runs, which does not answer; its log says why" in shown
    assert "engine-0 waits" not in shown
    view.apply(metrics("learner", {"stores/learner/wait_s": 0.0}, 2))
    assert "waits for" not in text_of(view)


def test_of_a_tournament_the_games_that_are_left_are_told() -> None:
    view = RunView(RUN, round_robin("a", "b", games=100))
    now_ms = time.time_ns() // 1_000_000
    for number in range(10):
        game = evaluated(number, "b", 0, 1.0, evaluated_uid=None)
        view.apply(msgspec.structs.replace(game, occurred_at_ms=now_ms))
    assert "10 of 100 games" in plain_line(view, 12, "")
    shown = text_of(view)
    assert "10 of 100 games" in shown
    assert "left" in shown
    assert "update" not in shown


def test_format_matches_and_exploration_are_shown() -> None:
    view = RunView(RUN, CONFIG)
    wrong = make_turn(2, format_feedback={"correct_answer_format": False})
    turns = [make_turn(0), make_turn(1), wrong, make_turn(3, valid=False)]
    view.apply(make_trajectory(run_id=RUN, turns=turns))
    view.apply(make_trajectory(1, run_id=RUN, turns=turns[2:], split="eval"))
    newest = {
        "model-pool/A/matches/random-legal": 30.0,
        "model-pool/B/matches/random-legal": 12.0,
        "model-pool/novelty/random-legal": 0.25,
        "model-pool/A/coverage": 1000.0,
        "model-pool/B/coverage": 234.0,
    }
    view.apply(metrics("model-pool", newest, 2))
    view.apply(metrics("model-pool", {}, 1))  # an older one, read later
    view.apply(made(Rating, env_id=OVERALL, game_id="g", model_uid="random-legal", games=7))
    told = words_of(view)
    assert "format 75%, legal 75%" in told
    assert "exploration 1,234 sequences of moves" in told
    words = told.split()
    after = words.index("random-legal")
    assert words[after + 3 : after + 6] == ["7", "42", "25%"]


def test_each_engine_and_each_gpu_has_a_line_and_a_narrow_terminal_no_second_column() -> None:
    view = RunView(RUN, CONFIG)
    for number in (0, 1):
        values = {f"inference/engine-{number}/{name}": 10.0 * (number + 1) for name in ("tok_s", "running")}
        view.apply(metrics(f"engine-{number}", values))
    view.apply(metrics("gpus", parse_gpus("0, 87, 30720, 81559\n1, [N/A], 512, 1024\nno devices\n")))
    rows = {}
    for width in (140, 60):
        text = text_of(view, width=width)
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
    shown = text_of(RunView(RUN, CONFIG), {"collector": Dying()}, "starting Ray")
    assert Dying().trouble in shown
    assert "0:03, starting Ray" in shown


async def test_without_a_terminal_it_is_told_once_and_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await log.create_topics(list(load_topics().values()))
        services = {"collector": Dying(trouble="")}
        watching = asyncio.ensure_future(watch_run(log, RUN, CONFIG, services, stage=Stage()))
        printed = ""
        async with asyncio.timeout(60):
            for words in ("update 0/", Dying().trouble):
                while words not in printed:
                    await asyncio.sleep(0.01)
                    printed += capsys.readouterr().err
                services["collector"].trouble = Dying().trouble
        watching.cancel()
        await asyncio.wait([watching])
    assert (printed + capsys.readouterr().err).count(Dying().trouble) == 1


def test_until_the_first_update_it_is_told_how_many_of_its_turns_are_played() -> None:
    needed = int(CONFIG.learner.batch_size * CONFIG.learner.batch_delay_buffer)
    view = RunView(RUN, CONFIG)
    assert plain_line(view, 12.3, "loading the model") == "[  12 s] loading the model"
    view.apply(started(0))
    assert "update 0/" in plain_line(view, 14, "loading the model")
    assert "for the first update" not in words_of(view) + plain_line(view, 12, "")
    view.apply(make_trajectory(run_id=RUN, turns=[make_turn(0), make_turn(1)]))
    assert f"2 of {needed} turns for the first update" in words_of(view)
    assert plain_line(view, 12, "").endswith(f"2 of {needed} turns for the first update")
    view.apply(update(1, [], []))
    assert "for the first update" not in words_of(view) + plain_line(view, 12, "")


def test_a_policy_without_one_legal_move_is_told_of() -> None:
    view = RunView(RUN, CONFIG)
    for number in range(32):
        assert "was a legal move" not in words_of(view)
        turns = [make_turn(index, valid=False) for index in range(2)]
        view.apply(make_trajectory(number, run_id=RUN, turns=turns))
    assert "none of 64 turns and more was a legal move" in words_of(view)
    view.apply(make_trajectory(99, run_id=RUN, turns=[make_turn(0)]))
    assert "was a legal move" not in words_of(view)
