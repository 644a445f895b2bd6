"""The overview of a run: it counts every game once, and does not grow with games."""

import pickle

import msgspec

from tests.builders import made
from tests.model_pool.outcomes import RUN, make_outcome
from unstable_stream.algorithms.intervals import wilson_interval
from unstable_stream.events import Action, GameAbandoned, GameOutcome
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.run_view import RunView

CONFIG = parse_config({"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]})


def _outcome(index: int) -> GameOutcome:
    outcome = make_outcome(index, {0: ("ckpt-000003", 1.0), 1: ("fixed", -1.0)}, env_id="Env-0")
    return msgspec.structs.replace(outcome, occurred_at_ms=100 * index)


def test_it_does_not_grow_with_games() -> None:
    view, sizes = RunView(RUN, CONFIG), []
    for index in range(6000):
        view.apply(_outcome(index))
        view.apply(_outcome(index))
        if index % 2000 == 1999:
            sizes.append(len(pickle.dumps(view)))
    assert view.games["train"] == 6000
    assert sizes[-1] < sizes[0] + 100


def test_a_game_given_up_is_not_counted_when_it_is_finished_later() -> None:
    view, outcome = RunView(RUN, CONFIG), _outcome(3)
    abandoned = made(GameAbandoned, outcome, run_id=RUN, reason="cut off")
    for event in (abandoned, outcome, _outcome(4)):
        view.apply(event)
    assert (view.in_flight.abandoned, view.games["train"]) == (1, 1)


def _evaluated(
    index: int,
    moves: str,
    players: tuple[str, str],
    first_wins: bool = True,
    evaluated_uid: str | None = None,
) -> GameOutcome:
    rewards = (1.0, -1.0) if first_wins else (-1.0, 1.0)
    named = {seat: (players[seat], rewards[seat]) for seat in (0, 1)}
    actions = tuple(Action(number % 2, move) for number, move in enumerate(moves))
    outcome = make_outcome(index, named, env_id="Env-0")
    return msgspec.structs.replace(outcome, split="eval", actions=actions, evaluated_uid=evaluated_uid)


def test_games_that_repeat_one_another_are_named() -> None:
    """By players and seats. Other moves, or another end of the same moves, are another game."""
    view = RunView(RUN, CONFIG)
    games = [
        *[("abc", ("first", "second"))] * 3,
        *[("ab", ("second", "first"))] * 2,
        ("abc", ("first", "third")),  # once
        ("ab", ("third", "first")),
        ("ac", ("third", "first")),
    ]
    for index, (moves, players) in enumerate(games):
        view.apply(_evaluated(index, moves, players))
    view.apply(_evaluated(20, "a", ("third", "second")))
    view.apply(_evaluated(21, "a", ("third", "second"), first_wins=False))  # what was dealt decided
    assert view.same_games.repeated() == [("first and second", 3), ("second and first", 2)]


def test_games_that_repeat_one_another_count_once_in_the_interval() -> None:
    """Four games won in seat 0 are one and the same, six in seat 1 are not: 1 + 3 won of 1 + 6."""
    view = RunView(RUN, CONFIG)
    for index in range(4):
        view.apply(_evaluated(index, "abc", ("ckpt-000003", "fixed"), evaluated_uid="ckpt-000003"))
    for index, moves in enumerate("aaabbb", 4):
        players = ("fixed", "ckpt-000003")
        view.apply(_evaluated(index, moves, players, moves == "a", evaluated_uid="ckpt-000003"))
    ((_, score),) = view.curve(view.matchups()[0])
    assert (score.wins, score.games) == (7, 10)
    assert score.interval() == wilson_interval(4, 7)


def test_games_without_recorded_moves_repeat_nothing() -> None:
    view = RunView(RUN, CONFIG)
    for index in range(4):
        view.apply(_evaluated(index, "", ("ckpt-000003", "fixed"), evaluated_uid="ckpt-000003"))
    ((_, score),) = view.curve(view.matchups()[0])
    assert score.interval() == wilson_interval(4, 4)
    assert view.same_games.repeated() == []
