"""Which runs belong together, and how long one still takes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.archive.history import START_MS, made_up_run
from tests.builders import made
from tests.places import archived
from unstable_stream.events import Event, LearnerUpdate, RunResumed, RunStarted, game_id
from unstable_stream.history.views.run_list import families, list_runs, read_standing
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.run_view import RunView

_CONFIG = {"learner": {"iterations": 10}}
_SETTINGS: dict[str, Any] = {"model": "tiny-player", "train_envs": ["TicTacToe-v0-train"], **_CONFIG}


def _begun(run_id: str, later_s: int, name: str = "", **fields: Any) -> Event:
    return made(
        RunStarted, run_id=run_id, occurred_at_ms=START_MS + 1000 * later_s, name=name or run_id, **fields
    )


def _evaluation(**keys: object) -> dict[str, Any]:
    return {"config": {"learner": {"iterations": 0}, "evaluation": keys}}


def test_whatever_belongs_to_a_run_is_listed_below_it(tmp_path: Path) -> None:
    met = [{"name": "random-legal"}, {"name": "run-a@2"}, {"name": "run-b@2"}]
    branch = {"game_id": game_id("run-a", "train", 3), "turn": 2}
    archive = archived(
        tmp_path,
        [
            *made_up_run(updates=2),
            _begun("fork", 60, config=_CONFIG, parent_run_id="run-a", parent_update=2),
            _begun("again", 70, config=_CONFIG, parent_run_id="fork"),
            _begun("eval", 80, config={"learner": {"iterations": 2}}, parent_run_id="run-a", parent_update=2),
            _begun(
                "play-1", 90, config={"learner": {"iterations": 2}}, parent_run_id="fork", parent_update=2
            ),
            _begun("met", 95, **_evaluation(round_robin=True, opponents=met)),
            _begun("branch", 97, **_evaluation(round_robin=True, branch=branch, opponents=met[:1])),
            _begun("alone", 98, **_evaluation(opponents=[{"name": "gone@3"}])),
            _begun("newest", 99, config=_CONFIG),
        ],
    )
    found = [
        [(depth, run.run_id, run.kind) for depth, run in family] for family in families(list_runs(archive))
    ]
    assert found == [
        [(0, "newest", "run")],
        [
            (0, "run-a", "run"),
            (1, "fork", "fork"),
            (2, "again", "learned again"),
            (2, "play-1", "play"),
            (1, "branch", "branch"),
            (1, "met", "tournament"),
            (1, "eval", "evaluation"),
        ],
        [(0, "alone", "evaluation")],
    ]


def test_runs_that_say_to_come_from_each_other_are_listed_all_the_same(tmp_path: Path) -> None:
    recorded = [
        _begun("a", 0, config=_CONFIG, parent_run_id="b"),
        _begun("b", 0, config=_CONFIG, parent_run_id="a"),
        _begun("c", 0, config=_CONFIG, parent_run_id="c"),
    ]
    found = families(list_runs(archived(tmp_path, recorded)))
    assert [[run.run_id for _, run in family] for family in found] == [["a", "b"], ["c"]]


def _paused(event: Event) -> Event:
    """The updates from the third on came after a pause."""
    if isinstance(event, RunStarted):
        return msgspec.structs.replace(event, config=_CONFIG)
    late = isinstance(event, LearnerUpdate) and event.update > 2
    return msgspec.structs.replace(event, occurred_at_ms=event.occurred_at_ms + 90_000) if late else event


@pytest.mark.parametrize(
    ("updates", "resumed", "seconds"),
    [(1, False, None), (2, False, 8 * 6), (4, False, 6 * (6 + 96 + 6) / 3), (4, True, 6 * 6)],
)
def test_what_is_left_takes_as_long_as_the_latest_updates_did(
    tmp_path: Path, updates: int, resumed: bool, seconds: float | None
) -> None:
    """An update took 6 s, ten are wanted; a pause before a resumption does not count."""
    events = [_paused(event) for event in made_up_run("run-c", updates=updates, finished=False)]
    if resumed:
        resumption = made(RunResumed, run_id="run-c", occurred_at_ms=START_MS + 90_000, config=_CONFIG)
        events.insert(
            next(n for n, event in enumerate(events) if getattr(event, "update", 0) == 3), resumption
        )
    run = read_standing(archived(tmp_path, events), "run-c")
    assert run is not None
    assert run.seconds_left == (None if seconds is None else pytest.approx(seconds))
    view = RunView("run-c", RunConfig(**_SETTINGS))
    for event in events:
        view.apply(event)
    assert view.seconds_left() == run.seconds_left, "the terminal says the same"
