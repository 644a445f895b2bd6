"""The rolling metrics of a run: numbers worked out by hand, and a slow version for everything else."""

import json
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import made
from tests.model_pool.outcomes import make_outcome
from tests.reward_transformations.trajectories import RUN, make_trajectory, make_turn
from unstable_stream.algorithms.rolling_metrics import FLUSH_EVERY_S, WINDOW, MetricsProcessor
from unstable_stream.events import Action, Event, GameOutcome, LearnerUpdate, Metrics, Trajectory, event_id

ENV = "collection-Env-v0"


def fold(events: Sequence[Event], processor: MetricsProcessor | None = None) -> list[Metrics]:
    processor = processor or MetricsProcessor(RUN)
    return [metrics for event in events for metrics in processor.handle(event)]


def rest(*events: Event) -> Mapping[str, float]:
    processor = MetricsProcessor(RUN)
    assert fold(events, processor) == []
    (metrics,) = processor.rest()
    return metrics.values


def make_update(update: int, **metrics: float) -> LearnerUpdate:
    return made(
        LearnerUpdate,
        run_id=RUN,
        occurred_at_ms=1_700_000_000_000 + update,
        update=update,
        loss=-0.125,
        metrics=metrics,
        duration_ms=1500.0,
    )


def test_one_training_game_by_hand() -> None:
    turns = (
        make_turn(0, completion=(1, 2), format_feedback={"correct_answer_format": True, "has_think": False}),
        make_turn(1, completion=(1, 2, 3, 4), format_feedback={"correct_answer_format": False}, valid=False),
    )
    lost = make_trajectory(0, rewards={0: -1.0, 1: 1.0}, turns=turns, invalid_move=True)
    expected = {"trajectories": 1.0, "reward": -1.0, "reward/seat-0": -1.0, "turns": 2.0}
    expected |= {"win-rate": 0.0, "draw-rate": 0.0, "loss-rate": 1.0, "invalid-move-rate": 1.0}
    expected |= {"format-success": 0.5, "format/has_think": 0.0, "legal-rate": 0.5, "cut-rate": 0.0}
    # "I play [0]" and "board 0"
    expected |= {"response-tokens": 3.0, "response-length": 10.0, "observation-length": 7.0}
    assert rest(lost) == {f"{ENV}/{name}": value for name, value in expected.items()}


def test_means_are_of_all_seats_that_are_trained_on() -> None:
    seats = [make_trajectory(0, seat, trained_seats=(0, 1)) for seat in (0, 1)]
    drawn = make_trajectory(1, rewards={0: 0.0, 1: 0.0})
    watched = make_trajectory(2, trained=False)  # a checkpoint that only plays along
    opponent = make_trajectory(3, policy_version=None, trained=False)
    values = rest(*seats, drawn, watched, opponent)
    assert values[f"{ENV}/trajectories"] == 3
    assert values[f"{ENV}/reward"] == 0.0
    assert values[f"{ENV}/reward/seat-0"] == 0.5
    assert values[f"{ENV}/reward/seat-1"] == -1.0
    assert [values[f"{ENV}/{name}-rate"] for name in ("win", "draw", "loss")] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("rewards", "result"),
    [
        ({0: 1.0}, "win"),
        ({0: 0.0}, "draw"),
        ({0: -1.0}, "loss"),
        ({0: 0.5, 1: 0.5, 2: 0.5}, "draw"),
        ({0: 1.0, 1: 1.0, 2: -1.0}, "win"),  # a whole team can win
        ({0: 0.0, 1: 1.0, 2: -1.0}, "loss"),
    ],
)
def test_a_result_is_what_the_archive_calls_it(rewards: dict[int, float], result: str) -> None:
    values = rest(make_trajectory(rewards=rewards))
    assert {name for name in ("win", "draw", "loss") if values[f"{ENV}/{name}-rate"]} == {result}


def test_an_evaluation_is_also_told_by_opponent() -> None:
    games = [
        msgspec.structs.replace(
            make_trajectory(index, split="eval", trained=False, rewards={0: reward, 1: -reward}),
            opponents=(opponent,),
        )
        for index, (reward, opponent) in enumerate([(1.0, "random-legal"), (1.0, "first"), (-1.0, "first")])
    ]
    values = rest(*games)
    assert values["evaluation-Env-v0/win-rate"] == pytest.approx(2 / 3)
    assert values["evaluation-Env-v0/win-rate/random-legal"] == 1.0
    assert values["evaluation-Env-v0/win-rate/first"] == 0.5
    assert values["evaluation-Env-v0/reward/first"] == 0.0


def test_an_outcome_tells_of_the_whole_game() -> None:
    outcome = msgspec.structs.replace(
        make_outcome(0, {0: ("ckpt-000003", 1.0), 1: ("fixed", -1.0)}), num_turns=9, duration_ms=2500.0
    )
    cut = msgspec.structs.replace(
        make_outcome(1, {0: ("ckpt-000003", 0.0)}), num_turns=20, duration_ms=500.0, reason="truncated"
    )
    assert rest(outcome, cut) == {
        f"{ENV}/games": 2.0,
        f"{ENV}/game-length": 14.5,
        f"{ENV}/game-seconds": 1.5,
        f"{ENV}/truncated-rate": 0.5,
    }
    assert MetricsProcessor(RUN).handle(make_outcome(0, {0: ("fixed", 1.0)})) == ()


def test_an_endpoint_is_told_by_its_answers() -> None:
    outcome = make_outcome(0, {0: ("ckpt-000003", 1.0), 1: ("o3", -1.0)})
    ours, theirs = outcome.seats
    asked = msgspec.structs.replace(
        outcome,
        seats=(ours, msgspec.structs.replace(theirs, kind="openai")),
        actions=tuple(Action(turn % 2, "[0]") for turn in range(4)),
        finish_reasons=("length", "stop", "length", "length"),
        no_answers={1: 2},
    )
    values = rest(asked)
    assert (values[f"{ENV}/cut-rate/o3"], values[f"{ENV}/no-answers/o3"]) == (0.5, 2.0)


def test_an_update_is_published_at_once_and_once() -> None:
    update = make_update(4, entropy=0.7, worst=float("inf"))
    processor = MetricsProcessor(RUN)
    (metrics,) = fold([update, update, make_update(3)], processor)
    assert metrics.values == {"learner/loss": -0.125, "learner/entropy": 0.7, "learner/duration_s": 1.5}
    assert (metrics.update, metrics.source) == (4, "tracker")
    assert processor.rest() == []


def test_each_policy_version_has_its_point() -> None:
    games = [make_trajectory(i, policy_version=v) for i, v in enumerate([0, 0, 1, 0, 2, 2, 2])]
    published = fold(games)
    assert [(one.update, one.values[f"{ENV}/trajectories"]) for one in published] == [(0, 2), (1, 4)]


def test_a_version_that_plays_long_has_a_point_every_64_seconds() -> None:
    first = 1_700_000_000_000
    seconds = [0.0, 63.9, 64.0, 64.1, 127.9, 128.0, 300.0]
    games = [
        msgspec.structs.replace(make_trajectory(i), occurred_at_ms=first + int(s * 1000))
        for i, s in enumerate(seconds)
    ]
    published = fold(games)
    assert FLUSH_EVERY_S == 64
    assert [one.values[f"{ENV}/trajectories"] for one in published] == [2, 5, 6]
    assert [one.occurred_at_ms - first for one in published] == [63_900, 127_900, 128_000]


def test_a_window_holds_the_latest_512() -> None:
    won = [make_trajectory(i) for i in range(100)]
    lost = [make_trajectory(i, rewards={0: -1.0, 1: 1.0}) for i in range(100, 600)]
    assert WINDOW == 512
    assert rest(*won, *lost)[f"{ENV}/win-rate"] == 12 / 512
    assert rest(*won, *lost)[f"{ENV}/trajectories"] == 600


def test_environments_and_runs_do_not_mix() -> None:
    processor = MetricsProcessor(RUN)
    others = [make_trajectory(0, run_id="run-b"), make_trajectory(1, env_id="Other-v0", policy_version=9)]
    assert fold([make_trajectory(0), *others, make_trajectory(2)], processor) == []
    env, other = processor.rest()
    assert (env.update, env.values[f"{ENV}/trajectories"]) == (3, 2.0)
    assert (other.update, other.values["collection-Other-v0/trajectories"]) == (9, 1.0)


def test_numbers_too_large_to_add_up_stop_nothing() -> None:
    huge = [make_trajectory(i, rewards={0: 1.7e308, 1: -1.0}) for i in range(3)]
    assert rest(*huge)[f"{ENV}/reward"] == pytest.approx(1.7e308)


# -- properties ---------------------------------------------------------------------------------------

_GAMES = st.lists(
    st.tuples(
        st.integers(0, 40),  # game index: some are delivered again
        st.sampled_from(["A", "B"]),
        st.sampled_from(["train", "eval"]),
        st.integers(0, 3),  # policy version
        st.sampled_from([-1.0, 0.0, 0.3, 1.0]),
        st.integers(0, 70),  # seconds since the event before
    ),
    max_size=60,
)


def _events(games: Sequence[tuple[int, str, str, int, float, int]]) -> list[Event]:
    made: list[Event] = []
    now = 1_700_000_000_000
    for index, env_id, split, version, reward, seconds in games:
        now += seconds * 1000
        trajectory = make_trajectory(
            index, split=split, env_id=env_id, policy_version=version, rewards={0: reward, 1: -reward}
        )
        outcome = make_outcome(index, {0: (f"ckpt-{version:06d}", reward)}, env_id=env_id, split=split)
        made += [msgspec.structs.replace(event, occurred_at_ms=now) for event in (trajectory, outcome)]
    return made


def _slow(events: Sequence[Event], upto: str, prefix: str) -> float:
    """Return the mean reward under a prefix after the event with this id, from all events."""
    seen: set[str] = set()
    rewards: list[float] = []
    for event in events:
        if not isinstance(event, Trajectory):
            continue
        ours = prefix == f"{'evaluation' if event.split == 'eval' else 'collection'}-{event.env_id}"
        if ours and event.event_id not in seen:
            rewards.append(event.reward)
        seen.add(event.event_id)
        if ours and event.event_id == upto:
            break
    latest = rewards[-WINDOW:]
    return sum(latest) / len(latest)


@settings(deadline=None, max_examples=50)
@given(_GAMES)
def test_every_published_mean_is_that_of_a_slow_loop(
    games: Sequence[tuple[int, str, str, int, float, int]],
) -> None:
    events = _events(games)
    processor = MetricsProcessor(RUN)
    published = [*fold(events, processor), *processor.rest()]
    ids = {
        event_id(RUN, "metrics", "tracker", "trajectories", f"{kind}-{event.env_id}", event.event_id): event
        for event in events
        if isinstance(event, Trajectory)
        for kind in ("collection", "evaluation")
    }
    checked = 0
    for metrics in published:
        for name, value in metrics.values.items():
            prefix, _, rest_of_name = name.partition("/")
            if rest_of_name == "reward":
                slow = _slow(events, ids[metrics.event_id].event_id, prefix)
                assert value == pytest.approx(slow)
                checked += 1
    assert checked or not games


@settings(deadline=None, max_examples=50)
@given(_GAMES, st.data())
def test_a_fold_goes_on_from_its_saved_state(
    games: Sequence[tuple[int, str, str, int, float, int]], data: st.DataObject
) -> None:
    events = _events(games)
    cut = data.draw(st.integers(0, len(events)))
    live, before, after = MetricsProcessor(RUN), MetricsProcessor(RUN), MetricsProcessor(RUN)
    published = fold(events[:cut], before)
    asked = list(before.rest())
    assert list(before.rest()) == asked  # asking changes nothing
    after.load_state(json.loads(json.dumps(before.state())))
    assert [*published, *fold(events[cut:], after)] == fold(events, live)
    assert after.state() == live.state()
    assert list(after.rest()) == list(live.rest())


@settings(deadline=None, max_examples=50)
@given(_GAMES)
def test_the_partitions_of_a_topic_do_not_matter(
    games: Sequence[tuple[int, str, str, int, float, int]],
) -> None:
    """Environments folded apart, and topics apart, publish the same as folded by one."""
    indices: dict[tuple[str, int], str] = {}
    unique: list[Event] = []
    for event in _events(games):
        assert isinstance(event, Trajectory | GameOutcome)
        # A game index belongs to one environment, as it does in a run.
        if indices.setdefault((event.split, event.game_index), event.env_id) == event.env_id:
            unique.append(event)
    together = fold(unique)
    apart = [
        metrics
        for topic in (Trajectory, GameOutcome)
        for env_id in ("A", "B")
        for metrics in fold([e for e in unique if isinstance(e, topic) and e.env_id == env_id])
    ]
    assert {one.event_id: one for one in together} == {one.event_id: one for one in apart}
    assert len(together) == len(apart)
