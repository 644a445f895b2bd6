"""Walks from steps, games, updates and checkpoints of the made-up history, in both directions."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.archive.history import made_up_run
from tests.builders import made
from tests.places import archived
from unstable_stream.archive import query
from unstable_stream.errors import ArchiveError, RunError
from unstable_stream.events import (
    Event,
    LearnerUpdate,
    Rating,
    RunStarted,
    event_id,
    game_id,
    step_id,
    trajectory_id,
)
from unstable_stream.history.hindsight.why import Direction, NodeKey, Provenance, find_node, trace

pytestmark = pytest.mark.longer


@pytest.fixture(scope="module")
def events() -> list[Event]:
    parent = {"parent_run_id": "run-a", "parent_update": 3}
    fork = made(RunStarted, run_id="fork", occurred_at_ms=1_700_000_100_000, name="fork of a", **parent)
    return [*made_up_run(), *made_up_run("run-b", updates=2), fork]


@pytest.fixture(scope="module")
def archive(events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archived(tmp_path_factory.mktemp("provenance"), events)


def _update(events: list[Event], number: int) -> LearnerUpdate:
    of_run = (e for e in events if isinstance(e, LearnerUpdate) and e.run_id == "run-a")
    return next(event for event in of_run if event.update == number)


def _step(game: int, turn: int = 0) -> str:
    """Return the id of a step of a train game of run-a: the policy sits in seat ``game % 2``."""
    return step_id(trajectory_id(game_id("run-a", "train", game), game % 2), turn)


def _linked(found: Provenance, key: NodeKey, direction: Direction) -> dict[str, list[tuple[str, str | None]]]:
    return {
        link.relation: [(end.key.id, end.note) for end in link.ends]
        for link in found.nodes[key].links
        if link.direction is direction
    }


# -- finding ----------------------------------------------------------------------------------------------


GAME, EVALUATION = game_id("run-a", "train", 4), trajectory_id(game_id("run-b", "eval", 0), 0)
METRICS = event_id("run-a", "metrics", "learner", 3)


@pytest.mark.parametrize(
    ("wanted", "run", "expected"),
    [
        (GAME[:13], "", f"game:run-a:{GAME}"),
        (_step(4), "", f"step:run-a:{_step(4)}"),
        (EVALUATION, "run-b", f"trajectory:run-b:{EVALUATION}"),
        ("run-a:update:5", "", "update:run-a:5"),
        ("made up run-b:update:2", "", "update:run-b:2"),
        ("update:2", "run-b", "update:run-b:2"),
        ("update:6", "", "update:run-a:6"),  # run-b has no sixth
        ("ckpt-000006", "", "checkpoint:run-a:ckpt-000006"),
        ("run-b:ckpt-000001", "", "checkpoint:run-b:ckpt-000001"),
        ("run-a", "", "run:run-a:run-a"),
        ("fork of a", "", "run:fork:fork"),
        (event_id("run-a", "learner-update", 3), "", "update:run-a:3"),
        (event_id("run-a", "checkpoint", 3), "", "checkpoint:run-a:ckpt-000003"),
        (event_id("run-a", "game-outcome", GAME), "", f"game:run-a:{GAME}"),
        (METRICS, "", f"event:run-a:{METRICS}"),
    ],
)
def test_many_names_find_one_thing(archive: Path, wanted: str, run: str, expected: str) -> None:
    assert str(find_node(archive, wanted, run=run)) == expected


@pytest.mark.parametrize(
    ("wanted", "run", "says"),
    [
        ("ckpt-000001", "", "several .* 'ckpt-000001': run-a:ckpt-000001, run-b:ckpt-000001. Name one"),
        ("ckpt-00000", "run-b", "several things of run 'run-b' .*: run-b:ckpt-000000, run-b:ckpt-000001, "),
        ("update:1", "", "run-a:update:1, run-b:update:1"),
        ("zzz", "", "nothing has an id that starts with 'zzz': looked through the steps, .* and all other"),
        ("update:99", "", "nothing has an id that starts with 'update:99'"),
        ("update:five", "", "'five' is no number of an update"),
        ("", "", "an empty id names nothing"),
        ("update:1", "run-c", "no run 'run-c' in this archive; known runs: fork, run-a, run-b"),
    ],
)
def test_what_is_not_clear_is_refused(archive: Path, wanted: str, run: str, says: str) -> None:
    with pytest.raises(RunError if run == "run-c" else ArchiveError, match=says):
        find_node(archive, wanted, run=run)


# -- walking ----------------------------------------------------------------------------------------------


def test_an_update_goes_back_to_its_batch_games_and_adapters(archive: Path, events: list[Event]) -> None:
    update = _update(events, 2)
    root = NodeKey("update", "run-a", "2")
    found = trace(archive, root, depth=3)
    because = _linked(found, root, Direction.BECAUSE)
    assert [step for step, _ in because["trained on"]] == list(update.step_ids)
    assert because["dropped"] == [(update.dropped[0].step_id, "overflow")]
    assert because["started from"] == [("ckpt-000001", None)]
    step = NodeKey("step", "run-a", update.step_ids[0])
    # The first step of update 2 is the first turn of game 4.
    assert step.id == _step(4)
    facts = found.nodes[step].facts
    assert facts["completion_token_ids"] == [100, 101, 102, 103, 104]
    assert facts["prompt_token_ids"] == list(range(20))
    assert facts["logprobs"] == [-0.5] * 5
    assert (facts["raw_reward"], facts["final_reward"], facts["reward"]) == (-1.0, -1.25, -1.125)
    game = NodeKey("game", "run-a", game_id("run-a", "train", 4))
    assert _linked(found, step, Direction.BECAUSE) == {
        "was a move in": [(game.id, None)],
        "was sampled by": [("ckpt-000001", None)],
    }
    assert found.nodes[game].facts["seed"] == 1004
    columns = ("model_uid", "kind", "sha256", "result")
    seats = [tuple(seat[name] for name in columns) for seat in found.nodes[game].facts["seats"]]
    assert seats == [("ckpt-000001", "checkpoint", "ab" * 32, "loss"), ("random", "scripted", None, "win")]


def test_the_summary_counts_the_whole_batch_and_lists_are_cut_but_counted(
    archive: Path, events: list[Event]
) -> None:
    update, root = _update(events, 2), NodeKey("update", "run-a", "2")
    found = trace(archive, root, depth=1, most=2)
    assert found.summary["steps"] == len(update.step_ids)
    assert (found.summary["games"], found.summary["trajectories"]) == (4, 4)
    assert found.summary["policies"] == {"ckpt-000001": len(update.step_ids)}
    assert found.summary["opponents"] == {"random": len(update.step_ids)}
    (link,) = [link for link in found.nodes[root].links if link.relation == "trained on"]
    assert [end.key.id for end in link.ends] == list(update.step_ids[:2])
    assert link.total == len(update.step_ids)


def test_updates_of_several_models_with_one_number_are_told_apart(tmp_path: Path) -> None:
    events = [
        replace(event, model="org/player") if isinstance(event, LearnerUpdate) else event
        for event in made_up_run()
    ]
    archive = archived(tmp_path, events)
    root = find_node(archive, "update:org/player/2")
    assert root == NodeKey("update", "run-a", "org/player/2")
    found, steps = trace(archive, root, depth=1), _update(events, 2).step_ids
    assert [step for step, _ in _linked(found, root, Direction.BECAUSE)["trained on"]] == list(steps)
    assert (found.nodes[root].facts["trained_steps"], found.summary["steps"]) == (len(steps), len(steps))
    other = NodeKey("update", "run-a", "org/referee/2")
    nothing = trace(archive, other, depth=1)
    assert (nothing.nodes[other].links, nothing.summary["steps"]) == ([], 0)


def test_a_game_goes_on_to_the_updates_and_checkpoints_it_fed(archive: Path) -> None:
    root = NodeKey("game", "run-a", game_id("run-a", "train", 7))
    found = trace(archive, root, depth=3)
    # Seat 1 of four moves has two turns; the last step of its update's games is dropped.
    first, last = _step(7, 0), _step(7, 1)
    assert _linked(found, root, Direction.LED_TO) == {"became": [(first, None), (last, None)]}
    trained = _linked(found, NodeKey("step", "run-a", first), Direction.LED_TO)
    assert list(trained) == ["was trained on by"]
    ((update, note),) = trained["was trained on by"]
    assert (update, (note or "")[:9]) == ("2", "at place ")
    assert _linked(found, NodeKey("step", "run-a", last), Direction.LED_TO) == {
        "was dropped by": [("2", "overflow")]
    }
    made = _linked(found, NodeKey("update", "run-a", "2"), Direction.LED_TO)
    assert made == {"made": [("ckpt-000002", None)]}
    assert (found.summary["trained"], found.summary["dropped"], found.summary["pending"]) == (1, 1, 0)
    assert [row["model_uid"] for row in found.summary["ratings"]] == ["ckpt-000001"]


def test_a_checkpoint_goes_both_ways(archive: Path) -> None:
    root = NodeKey("checkpoint", "run-a", "ckpt-000003")
    found = trace(archive, root, depth=1)
    assert _linked(found, root, Direction.BECAUSE) == {
        "was made by": [("3", None)],
        "was trained from": [("ckpt-000002", None)],
    }
    led_to = _linked(found, root, Direction.LED_TO)
    assert led_to["was the start of"] == [("4", None)]
    assert led_to["was forked into"] == [("fork", None)]
    assert [update for update, _ in led_to["sampled moves trained on by"]] == ["4"]
    assert len(led_to["played in"]) == 6  # two evaluation games and four to train on
    results = {"eval loss": 1, "eval win": 1, "train loss": 1, "train win": 2, "train draw": 1}
    assert found.summary["results"] == results


def test_a_forked_run_comes_from_a_checkpoint_and_a_rating_from_a_game(
    archive: Path, events: list[Event]
) -> None:
    root = NodeKey("run", "fork", "fork")
    (link,) = trace(archive, root, depth=1).nodes[root].links
    assert (link.relation, str(link.ends[0].key)) == ("was forked from", "checkpoint:run-a:ckpt-000003")
    rating = next(event for event in events if isinstance(event, Rating))
    root = NodeKey("rating", "run-a", rating.event_id)
    found = trace(archive, root, depth=1)
    assert _linked(found, root, Direction.BECAUSE) == {"was given for": [(game_id("run-a", "eval", 0), None)]}
    assert found.nodes[root].facts["mu"] == 25.125


def test_a_game_in_flight_has_planned_seats_only(archive: Path) -> None:
    root = NodeKey("game", "run-a", game_id("run-a", "train", 24))
    found = trace(archive, root)
    assert found.nodes[root].facts["state"] == "in-flight"
    assert [seat["model_uid"] for seat in found.nodes[root].facts["seats"]] == ["ckpt-000006", "random"]
    assert found.summary["steps"] == 0


def test_depth_is_how_far_it_goes(archive: Path) -> None:
    root = NodeKey("checkpoint", "run-a", "ckpt-000002")
    kinds = [
        {(key.kind, key.id) for key in trace(archive, root, depth=depth, most=1).nodes} for depth in (1, 2, 9)
    ]
    assert ("update", "2") in kinds[0]
    assert ("update", "1") not in kinds[0]
    assert kinds[0] < kinds[1] < kinds[2]
    assert {("checkpoint", "ckpt-000000"), ("checkpoint", "ckpt-000006")} <= kinds[2]


def test_every_step_of_the_archive_is_reached_from_its_update(archive: Path) -> None:
    reached: set[str] = set()
    for number in range(1, 7):
        found = trace(archive, NodeKey("update", "run-a", str(number)), depth=1)
        reached |= {key.id for key in found.nodes if key.kind == "step"}
    known = query(archive, "SELECT step_id FROM steps WHERE run_id = 'run-a'").rows
    assert reached == {step for (step,) in known}
