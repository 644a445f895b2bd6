"""The first of twenty planted differences is named, each in its layer, and what follows is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import unstable_stream as us
from tests.archive.history import GAMES_PER_UPDATE, made_up_run
from tests.builders import made
from tests.places import archived
from unstable_stream.errors import ConfigError
from unstable_stream.events import (
    Action,
    Checkpoint,
    DroppedStep,
    EnvironmentUse,
    Event,
    ExtensionUse,
    GameOutcome,
    GamePosition,
    GameStarted,
    LearnerUpdate,
    Rating,
    RunStarted,
    Step,
    Trajectory,
    pack_floats,
    pack_tokens,
)
from unstable_stream.history.hindsight.diff import RunDiff

GAME = 2 * GAMES_PER_UPDATE + 1
"""A game of the policy after update 2."""
Change = Callable[[Any], Event]


def replaced(**fields: Any) -> Change:
    return lambda event: msgspec.structs.replace(event, **fields)


def turn(**fields: Any) -> Change:
    """Change the first turn of a trajectory."""
    return lambda event: msgspec.structs.replace(
        event, turns=(msgspec.structs.replace(event.turns[0], **fields), *event.turns[1:])
    )


def other_player(event: GameStarted) -> Event:
    seats = [msgspec.structs.replace(each, model_uid="perfect") for each in event.seats if not each.trained]
    return msgspec.structs.replace(event, seats=tuple(seats + [each for each in event.seats if each.trained]))


def other_draw(event: LearnerUpdate) -> Event:
    *kept, last = event.step_ids
    dropped = (*event.dropped, DroppedStep(last, "overflow"))
    return msgspec.structs.replace(event, step_ids=tuple(kept), dropped=dropped)


def other_order(event: LearnerUpdate) -> Event:
    return msgspec.structs.replace(event, step_ids=event.step_ids[::-1])


def metric(**metrics: float) -> Change:
    return lambda event: msgspec.structs.replace(event, metrics=event.metrics | metrics)


EXTENSION = made(ExtensionUse, kind="opponent", target="mine.py:Mine", sha256="ab" * 32)
ENVIRONMENT = made(EnvironmentUse, env_id="TicTacToe-v0-train", num_players=2, sha256="cd" * 32)
PLANTED: list[tuple[str, type[Event], Change]] = [
    ("settings and code", RunStarted, replaced(config={"learner": {"iterations": 6, "learning_rate": 1.0}})),
    ("settings and code", RunStarted, replaced(seed=8, config={"learner": {"iterations": 6}, "seed": 8})),
    ("settings and code", RunStarted, replaced(package_version="0.2.0")),
    ("settings and code", RunStarted, replaced(extensions=(EXTENSION,))),
    ("settings and code", RunStarted, replaced(environments=(ENVIRONMENT,))),
    ("packages", LearnerUpdate, replaced(computed_with={"torch": "2.13.0"})),
    ("games planned", GameStarted, replaced(seed=5)),
    ("games planned", GameStarted, other_player),
    ("positions", GameOutcome, replaced(position=GamePosition(game_id="g", turn=0, seed=1, moves=0))),
    ("observations", Trajectory, turn(observation="[GAME] Another board.")),
    ("prompts", Trajectory, turn(prompt="[INST] Board [/INST]")),
    ("prompt tokens", Trajectory, turn(prompt_token_ids=pack_tokens([1, 2]))),
    ("log-probabilities", Trajectory, turn(logprobs=pack_floats([-0.25] * (4 + GAME % 3)))),
    ("sampled tokens", Trajectory, turn(completion_token_ids=pack_tokens(range(4 + GAME % 3)))),
    ("moves", GameOutcome, replaced(actions=(Action(0, "[8]"), Action(1, "[1]"), Action(0, "[2]")))),
    ("results", GameOutcome, replaced(reason="truncated")),
    ("rewards", Step, replaced(raw_reward=0.5)),
    ("final rewards", Step, replaced(final_reward=0.5)),
    ("step rewards", Step, replaced(reward=0.5)),
    ("draws of the buffer", LearnerUpdate, other_draw),
    ("batches", LearnerUpdate, other_order),
    ("metrics of the update", LearnerUpdate, metric(grad_norm=0.125)),
    ("weights", Checkpoint, replaced(sha256="ef" * 32)),
    ("ratings", Rating, replaced(mu=1.0)),
]


def concerns(event: Event, kind: type[Event]) -> bool:
    """Whether a difference is planted in an event: of the run's start, one game, or the third update."""
    if type(event) is not kind or getattr(event, "split", "train") != "train":
        return False
    update = getattr(event, "update", getattr(event, "iteration", 3))
    played = getattr(event, "game_index", GAME)
    return bool(update == 3 and played == GAME)


def two_runs(path: Path, *planted: tuple[type[Event], Change]) -> RunDiff:
    changed = []
    for event in made_up_run("run-b"):
        for kind, change in planted:
            event = change(event) if concerns(event, kind) else event
        changed.append(event)
    archived(path, [*made_up_run("run-a"), *changed])
    return us.diff("run-a", "run-b", data=path)


@pytest.mark.parametrize(("layer", "kind", "change"), PLANTED)
def test_a_planted_difference_is_the_first(
    tmp_path: Path, layer: str, kind: type[Event], change: Change
) -> None:
    found = two_runs(tmp_path, (kind, change))
    assert found.first is not None
    assert found.first.layer == layer
    assert found.first.one != found.first.other
    assert found.reason
    others = [each.layer for each in found.layers if each.differing and each is not found.first]
    # A draw that differs leaves another batch; tokens that differ are no other distribution.
    assert others == (["batches"] if layer == "draws of the buffer" else [])


def test_two_runs_of_the_same_events_are_equal(tmp_path: Path) -> None:
    found = two_runs(tmp_path)
    assert found.first is None
    assert [each.layer for each in found.layers if not each.compared] == []
    assert found.sentences() == ["run-a and run-b are equal, as far as both went"]
    with pytest.raises(ConfigError, match="both are run run-a: name two runs"):
        us.diff("run-a", "run-a", data=tmp_path)


def test_weights_of_an_update_come_before_the_games_they_play(tmp_path: Path) -> None:
    """Prompts are an earlier layer, but those of game 9 are played by the policy of update 2."""
    weights = next(each for each in PLANTED if each[0] == "weights")
    prompts = next(each for each in PLANTED if each[0] == "prompts")
    found = two_runs(tmp_path, weights[1:], prompts[1:])
    assert found.first is not None
    assert (found.first.layer, found.first.version) == ("prompts", 2)
    later = next(each for each in found.layers if each.layer == "weights")
    assert (later.follows, later.version, later.place) == (True, 2, "checkpoint 3")


def test_of_a_fork_and_its_parent_what_came_after_is_compared(tmp_path: Path) -> None:
    """Where both went alike before the fork, a difference there counts for nothing."""
    fork = {"parent_run_id": "run-a", "parent_update": 3, "parent_games": 3 * GAMES_PER_UPDATE}
    prompts = next(each for each in PLANTED if each[0] == "prompts")
    found = two_runs(tmp_path, (RunStarted, replaced(**fork)), prompts[1:])
    assert found.first is None
    assert found.from_update == 3


def test_evaluation_games_of_a_fork_have_numbers_of_their_own(tmp_path: Path) -> None:
    """Its first is one of the checkpoint that it began with: the parent's first is another game."""
    fork = {"parent_run_id": "run-a", "parent_update": 3, "parent_games": 3 * GAMES_PER_UPDATE}
    of_before = 2 * 3
    changed: list[Event] = []
    for event in made_up_run("run-b"):
        if isinstance(event, RunStarted):
            event = msgspec.structs.replace(event, **fork)
        elif isinstance(event, GameStarted | GameOutcome | Trajectory) and event.split == "eval":
            if event.game_index < of_before:
                continue
            event = msgspec.structs.replace(event, game_index=event.game_index - of_before)
        changed.append(event)
    archived(tmp_path, [*made_up_run("run-a"), *changed])
    assert us.diff("run-a", "run-b", data=tmp_path).first is None
