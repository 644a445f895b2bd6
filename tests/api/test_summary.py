"""What a run ends with."""

from pathlib import Path

import pytest
from rich.console import Console

import unstable_stream as us
from tests.builders import made
from tests.model_pool.outcomes import RUN, make_outcome
from tests.places import append
from tests.services.workers.test_game_schedule import config
from unstable_stream.api.summary import rating_ladder
from unstable_stream.events import OVERALL, Checkpoint, Event, Rating, RunStarted
from unstable_stream.runs.run_view import RunView
from unstable_stream.ui.cli.running import print_summary


def test_checkpoints_of_few_games_do_not_stand_above_the_last() -> None:
    view = RunView("run", config())
    for iteration in range(4):
        view.apply(made(Checkpoint, model_uid=f"ckpt-{iteration:06d}", iteration=iteration, run_id="run"))
    rated = {"random-legal": (20, 900), "ckpt-000000": (18, 5), "ckpt-000001": (31, 24)}
    rated |= {"ckpt-000002": (26, 25), "ckpt-000003": (25, 100)}
    for uid, (mu, games) in rated.items():
        of_model = {"model_uid": uid, "env_id": OVERALL, "mu": mu, "sigma": 0.5, "games": games}
        view.apply(made(Rating, event_id=uid, run_id="run", **of_model))
    detail, table = rating_ladder(view)
    assert detail == "by mu - 3 sigma; 1 checkpoint of fewer than 25 games left out"
    console = Console(width=80, record=True)
    console.print(table)
    rows = [line.split() for line in console.export_text().splitlines()[1:]]
    assert rows == [
        ["1", "ckpt-000002", "24.5", "26.0", "0.5", "25"],
        ["2", "ckpt-000003", "23.5", "25.0", "0.5", "100"],
        ["3", "random-legal", "18.5", "20.0", "0.5", "900"],
        ["4", "ckpt-000000", "16.5", "18.0", "0.5", "5"],
    ]


def test_names_are_shown_as_they_are_and_environments_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[Event] = [made(RunStarted, run_id=RUN, seed=1, config=config().model_dump(mode="json"))]
    for index, (env, version) in enumerate([("A-v0", 0), ("B-v0", 0), ("B-v0", 1), ("B-v0", 1)]):
        uid = f"ckpt-{version:06d}"
        players = {0: (uid, 1.0), 1: ("old[/x]", -1.0)}
        events.append(
            make_outcome(index, players, split="eval", evaluated_uid=uid, actions=["a"], env_id=env)
        )
    append(tmp_path, events)
    print_summary(us.open_run(RUN, data=tmp_path))
    shown = capsys.readouterr().out
    assert "All games of ckpt-000001 and old[/x] (2 times)" in shown
    assert "Curve: evaluation games won against old[/x] in B-v0, with 95 % intervals" in shown
