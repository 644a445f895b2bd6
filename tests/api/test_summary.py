"""What a run ends with."""

from rich.console import Console

from tests.builders import made
from tests.services.workers.test_game_schedule import config
from unstable_stream.api.summary import rating_ladder
from unstable_stream.events import OVERALL, Checkpoint, Rating
from unstable_stream.runs.run_view import RunView


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
