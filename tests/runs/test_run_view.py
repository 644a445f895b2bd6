"""The overview of a run: it counts every game once, and does not grow with games."""

import pickle

import msgspec

from tests.model_pool.outcomes import RUN, make_outcome
from unstable_stream.events import GameAbandoned, GameOutcome
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
    abandoned = GameAbandoned(
        event_id="abandoned",
        run_id=RUN,
        occurred_at_ms=0,
        game_id=outcome.game_id,
        game_index=outcome.game_index,
        split=outcome.split,
        reason="cut off",
    )
    for event in (abandoned, outcome, _outcome(4)):
        view.apply(event)
    assert (view.abandoned, view.games["train"]) == (1, 1)
