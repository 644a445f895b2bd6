"""The rating processor: who is rated against whom, from where, once."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model_pool.outcomes import RUN, make_outcome
from unstable_stream.errors import EventError
from unstable_stream.events import OVERALL, Event, GameOutcome, GamePosition, Rating, encode_event, event_id
from unstable_stream.model_pool import RatingProcessor, Skill

ME, OLD = "ckpt-000002", "ckpt-000001"


def _rate(processor: RatingProcessor, *outcomes: Event) -> list[Rating]:
    ratings = [event for outcome in outcomes for event in processor.handle(outcome)]
    assert all(isinstance(rating, Rating) for rating in ratings)
    return [rating for rating in ratings if isinstance(rating, Rating)]


def _win(index: int, winner: str, loser: str, **options: str) -> GameOutcome:
    return make_outcome(index, {0: (winner, 1.0), 1: (loser, -1.0)}, **options)  # type: ignore[arg-type]


def test_a_game_rates_both_models_in_its_environment_and_overall() -> None:
    outcome = _win(0, "x", "y")
    ratings = _rate(RatingProcessor(RUN), outcome)
    assert [(r.env_id, r.model_uid, r.games) for r in ratings] == [
        (env_id, uid, 1) for env_id in ("Env-v0", OVERALL) for uid in ("x", "y")
    ]
    numbers = [number for rating in ratings[:2] for number in (rating.mu, rating.sigma)]
    assert numbers == pytest.approx([29.396, 7.171, 20.604, 7.171], abs=1e-3)
    assert ratings[0].event_id == event_id(RUN, "rating", outcome.game_id, "Env-v0", "x")
    assert {(r.run_id, r.game_id, r.occurred_at_ms) for r in ratings} == {
        (RUN, outcome.game_id, outcome.occurred_at_ms)
    }


def test_environments_and_splits_are_rated_apart_and_overall_together() -> None:
    """A game of the evaluation has the index of a training game."""
    games = [_win(0, "x", "y", env_id="A"), _win(0, "x", "y", env_id="B", split="eval")]
    ratings = _rate(RatingProcessor(RUN), *games)
    counts = {(r.env_id, r.model_uid): r.games for r in ratings}
    assert counts == {(env, uid): 1 + (env == OVERALL) for env in ("A", "B", OVERALL) for uid in "xy"}
    by_env = {(r.env_id, r.model_uid): r.mu for r in ratings}
    assert by_env["A", "x"] == by_env["B", "x"] < by_env[OVERALL, "x"]


def test_a_game_seen_before_and_other_runs_change_nothing() -> None:
    processor = RatingProcessor(RUN)
    _rate(processor, _win(0, "x", "y"))
    before = json.dumps(processor.state())
    assert _rate(processor, _win(0, "x", "y"), _win(5, "x", "y", run_id="run-b")) == []
    assert json.dumps(processor.state()) == before


def test_a_game_from_a_position_of_another_rates_nobody() -> None:
    start = GamePosition(game_id="parent", turn=3, seed=9, moves=3)
    assert _rate(RatingProcessor(RUN), make_outcome(0, {0: ("x", 1.0), 1: ("y", -1.0)}, position=start)) == []


def test_an_outcome_without_seats_is_refused() -> None:
    processor = RatingProcessor(RUN)
    with pytest.raises(EventError, match="no seats"):
        processor.handle(make_outcome(0, {}))
    assert len(_rate(processor, _win(0, "x", "y"))) == 4


# -- where a checkpoint starts ----------------------------------------------------------------


def test_without_any_rated_ancestor_the_start_is_the_default() -> None:
    processor = RatingProcessor(RUN)
    _rate(processor, _win(0, "ckpt-000005", "x"))
    _rate(processor, _win(1, "ckpt-000002", "ckpt-000002"))
    assert processor.skill("ckpt-000002") == Skill(25.0, 25.0 / 3.0)  # 5 is newer, no ancestor
    assert processor.skill("stranger") == Skill(25.0, 25.0 / 3.0)
    circle = {"ckpt-000007": "ckpt-000008", "ckpt-000008": "ckpt-000007"}
    _rate(processor, make_outcome(2, {0: ("ckpt-000007", 0.0), 1: ("ckpt-000007", 0.0)}, parents=circle))
    _rate(processor, make_outcome(3, {0: ("ckpt-000008", 0.0), 1: ("ckpt-000008", 0.0)}, parents=circle))
    assert processor.skill("ckpt-000008").mu == processor.skill("ckpt-000005").mu


# -- folding again ----------------------------------------------------------------------------

models = st.sampled_from(["x", "y", "ckpt-000000", "ckpt-000001", "ckpt-000002"])
games = st.lists(
    st.tuples(
        st.integers(0, 10),
        st.sampled_from(["A", "B"]),
        st.lists(st.tuples(models, st.sampled_from([-1.0, 0.0, 1.0])), min_size=2, max_size=3),
    ),
    max_size=12,
)


def _outcomes(draws: Sequence[tuple[int, str, list[tuple[str, float]]]]) -> list[GameOutcome]:
    return [make_outcome(i, dict(enumerate(seats)), env_id=env_id) for i, env_id, seats in draws]


@given(games, st.integers(0, 12))
def test_folding_again_gives_the_same_bytes(
    draws: list[tuple[int, str, list[tuple[str, float]]]], cut: int
) -> None:
    outcomes = _outcomes(draws)
    live = RatingProcessor(RUN)
    expected = [encode_event(r) for r in _rate(live, *outcomes)]
    first = RatingProcessor(RUN)
    head = _rate(first, *outcomes[:cut])
    resumed = RatingProcessor(RUN)
    resumed.load_state(json.loads(json.dumps(first.state())))
    assert [encode_event(r) for r in head + _rate(resumed, *outcomes[cut:])] == expected
    assert json.dumps(resumed.state()) == json.dumps(live.state())
    assert len(set(expected)) == len(expected)
