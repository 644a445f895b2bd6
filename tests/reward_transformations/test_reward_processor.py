"""The reward processor: who yields steps, with which rewards, once."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import made
from tests.model_pool.outcomes import make_outcome
from tests.reward_transformations.trajectories import RUN, make_trajectory, make_turn
from unstable_stream.errors import EventError
from unstable_stream.events import (
    Event,
    GameOutcome,
    GamePosition,
    Step,
    Trajectory,
    encode_event,
    step_id,
    trajectory_id,
)
from unstable_stream.log.port import partition_for_key
from unstable_stream.reward_transformations import (
    ComposeFinalRewardTransforms,
    ComposeStepRewardTransforms,
    FinalRewardTransform,
    RewardForFormat,
    RewardProcessor,
    RoleAdvantageByEnvFormatter,
    RoleAdvantageFormatter,
    expected_steps_of,
)


def _processor(tau: float = 0.5, *, filter_opponent_invalid: bool = False) -> RewardProcessor:
    return RewardProcessor(
        RUN,
        ComposeFinalRewardTransforms([RoleAdvantageByEnvFormatter(tau=tau)]),
        ComposeStepRewardTransforms([RewardForFormat(0.25, -0.25)]),
        filter_opponent_invalid=filter_opponent_invalid,
    )


def _steps(processor: RewardProcessor, *trajectories: Event) -> list[Step]:
    steps = [event for trajectory in trajectories for event in processor.handle(trajectory)]
    assert all(isinstance(step, Step) for step in steps)
    return [step for step in steps if isinstance(step, Step)]


def _bytes(events: Iterable[Event]) -> list[bytes]:
    return [encode_event(event) for event in events]


def test_each_turn_becomes_a_step_with_every_stage_of_its_reward() -> None:
    trajectory = make_trajectory(
        game_index=4,
        rewards={0: -1.0, 1: 1.0},
        turns=[
            make_turn(0, policy_version=None),
            make_turn(1, finish_reason="length", policy_version=5, format_feedback={"cut_off": False}),
        ],
    )
    processor = _processor()
    _steps(processor, make_trajectory(game_index=3, rewards={0: -1.0, 1: 1.0}))
    first, second = _steps(processor, trajectory)
    assert first == made(
        Step,
        event_id=step_id(trajectory_id(trajectory.game_id, 0), 0),
        run_id=RUN,
        occurred_at_ms=trajectory.occurred_at_ms,
        trajectory_id=trajectory.event_id,
        game_id=trajectory.game_id,
        game_index=4,
        env_id="Env-v0",
        num_turns=2,
        model_uid="ckpt-000003",
        policy_version=3,
        prompt_token_ids=trajectory.turns[0].prompt_token_ids,
        completion_token_ids=trajectory.turns[0].completion_token_ids,
        logprobs=trajectory.turns[0].logprobs,
        truncated=False,
        temperature=0.7,
        raw_reward=-1.0,
        final_reward=-0.5,
        reward=-0.25,
    )
    assert (second.turn_index, second.truncated, second.policy_version) == (1, True, 5)
    assert (first.cut_off, second.cut_off) == (None, False)
    assert len({first.event_id, second.event_id}) == 2


def test_the_dealt_roles_reach_the_final_transformations() -> None:
    final = ComposeFinalRewardTransforms([RoleAdvantageByEnvFormatter(tau=1.0, by="role")])
    processor = RewardProcessor(RUN, final)
    games = [
        make_trajectory(0, 0, trained_seats=(0,), roles={0: "Guesser", 1: "Giver"}),
        make_trajectory(1, 1, trained_seats=(1,), rewards={0: 0.0, 1: 1.0}, roles={1: "Guesser", 0: "Giver"}),
    ]
    # The guesser of the second game sits elsewhere, and has the baseline of the first one's.
    assert [step.final_reward for step in _steps(processor, *games)] == [1.0, 1.0, 0.0, 0.0]


def test_a_seat_has_a_baseline_for_each_opponent() -> None:
    """Each baseline is its last reward; that of the first seat against a scripted player is not used against
    checkpoints, of whatever update, nor by the other seat.
    """
    final = ComposeFinalRewardTransforms([RoleAdvantageByEnvFormatter(tau=1.0, by="opponent")])
    processor = RewardProcessor(RUN, final)
    games = [
        make_trajectory(0, 0, rewards={0: 1.0, 1: -1.0}, opponents=("random-legal",)),
        make_trajectory(1, 0, rewards={0: 0.5, 1: -0.5}, opponents=("ckpt-000003",)),
        make_trajectory(2, 0, rewards={0: 0.0, 1: 0.0}, opponents=("random-legal",)),
        make_trajectory(3, 0, rewards={0: 0.0, 1: 0.0}, opponents=("ckpt-000004",)),
        make_trajectory(4, 1, rewards={0: 0.0, 1: 1.0}, opponents=("random-legal",), trained_seats=(1,)),
    ]
    steps = _steps(processor, *games)
    assert [step.final_reward for step in steps[::2]] == [1.0, 0.5, -1.0, -0.5, 1.0]
    again = RewardProcessor(RUN, final)
    again.load_state(json.loads(json.dumps(processor.state())))
    more = make_trajectory(5, 0, rewards={0: 1.0, 1: -1.0}, opponents=("ckpt-000009",))
    assert [step.final_reward for step in _steps(again, more)] == [1.0, 1.0]
    assert [step.final_reward for step in _steps(processor, more)] == [1.0, 1.0]


def test_the_first_answer_to_a_position_is_marked_and_teaches_the_baseline_nothing() -> None:
    processor = _processor(tau=1.0)
    whole = make_trajectory(0, 0, rewards={0: 0.5, 1: -0.5})
    start = GamePosition(game_id="parent", turn=3, seed=9, moves=4)
    turns = [msgspec.structs.replace(make_turn(index), game_turn=4 + 2 * index) for index in range(2)]
    branch = make_trajectory(1, 0, rewards={0: 1.0, 1: -1.0}, turns=turns, position=start)
    steps = _steps(processor, whole, branch, make_trajectory(2, 0, rewards={0: 0.5, 1: -0.5}))
    assert [step.branch for step in steps] == [None] * 2 + ["parent:3", None] + [None] * 2
    assert [step.final_reward for step in steps] == [0.5] * 2 + [0.5] * 2 + [0.0] * 2


def test_the_first_play_of_a_game_counts_also_if_no_trained_seat_was_asked() -> None:
    processor = _processor(tau=1.0)
    first = make_trajectory(0, 1, trained=False, trained_seats=())
    second = [make_trajectory(0, 1, trained=False), make_trajectory(0, 0)]
    assert _steps(processor, first, *second) == []
    assert len(_steps(processor, make_trajectory(1, 0))) == 2
    # A second play without a trained seat closes no game that is under way.
    one, two = (make_trajectory(2, seat, trained_seats=(0, 1)) for seat in (0, 1))
    again = make_trajectory(2, 1, trained=False, trained_seats=())
    assert len(_steps(processor, one, again, two)) == 4


def test_what_is_not_for_it_yields_nothing_and_leaves_no_trace() -> None:
    processor = _processor()
    before = json.dumps(processor.state())
    others = [make_trajectory(run_id="run-b"), make_trajectory(split="eval"), make_trajectory(trained=False)]
    assert _steps(processor, *others, _outcome()) == []
    assert json.dumps(processor.state()) == before


def test_memory_is_bounded_by_the_gaps() -> None:
    processor = _processor()
    for index in range(2000):
        # The trained seat alternates, as it does against a fixed opponent.
        seat = index % 2
        _steps(processor, make_trajectory(index, seat, trained_seats=(seat,)))
    assert processor.state()["done"] == [[0, 2000]]
    assert processor.state()["open"] == []


@pytest.mark.parametrize(
    ("trajectory", "message"),
    [
        (make_trajectory(policy_version=None, turns=[make_turn(0, policy_version=None)]), "version None"),
        (make_trajectory(turns=[make_turn(1)]), "turn_index 1"),
        (
            make_trajectory(turns=[msgspec.structs.replace(make_turn(0), logprobs=b"")]),
            "3 completion tokens and 0 log-probabilities",
        ),
        (make_trajectory(seat=0, trained_seats=(1,)), r"trained_seats is \[1\]"),
        (make_trajectory(trained_seats=(0, 5)), r"rewards are of seats \[0, 1\]"),
    ],
)
def test_an_impossible_trajectory_is_refused_without_a_trace(trajectory: Trajectory, message: str) -> None:
    processor = _processor()
    before = json.dumps(processor.state())
    with pytest.raises(EventError, match=message):
        processor.handle(trajectory)
    assert json.dumps(processor.state()) == before


# -- games ended by an opponent's invalid move ------------------------------------------------


def _invalid_game(index: int, offender: int, trained: tuple[int, ...]) -> list[Trajectory]:
    rewards = {0: 1.0, 1: 1.0} | {offender: -1.0}
    return [
        make_trajectory(
            index,
            seat,
            rewards=rewards,
            trained_seats=trained,
            invalid_move=seat == offender,
            opponent_invalid=seat != offender,
        )
        for seat in trained
    ]


def _outcome(invalid_seat: int | None = None, trained: tuple[int, ...] = (0,)) -> GameOutcome:
    return make_outcome(
        0, {0: ("ckpt-000003", 1.0), 1: ("x", -1.0)}, trained=trained, invalid_seat=invalid_seat, turns=2
    )


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("trained", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("offender", [0, 1])
def test_the_steps_of_a_game_can_be_told_from_its_outcome(
    filtered: bool, trained: tuple[int, ...], offender: int
) -> None:
    processor = _processor(filter_opponent_invalid=filtered)
    steps = _steps(processor, *_invalid_game(0, offender, trained))
    assert {s.seat for s in steps} == ({offender} & set(trained) if filtered else set(trained))
    assert processor.filtered == (len(set(trained) - {offender}) if filtered else 0)
    assert processor.state()["done"] == [[0, 1]]
    outcome = _outcome(offender, trained)
    assert sum(expected_steps_of(outcome, filter_opponent_invalid=filtered).values()) == len(steps)
    assert expected_steps_of(_outcome(trained=trained), filter_opponent_invalid=filtered) == {
        None: 2 * len(trained)
    }


@pytest.mark.parametrize("order", [1, -1])
def test_baselines_learn_nothing_from_a_filtered_seat(order: int) -> None:
    processor = _processor(tau=1.0, filter_opponent_invalid=True)
    _steps(processor, *_invalid_game(0, 1, (0, 1))[::order])
    assert processor.state()["envs"]["Env-v0"]["final"]["stages"] == [{"baselines": {"Env-v0": {"1": -1.0}}}]


# -- folding again ----------------------------------------------------------------------------

deliveries = st.lists(
    st.tuples(st.integers(0, 12), st.sampled_from(["A", "B"]), st.booleans(), st.integers(0, 1)), max_size=40
)


def _trajectories(draws: list[tuple[int, str, bool, int]]) -> list[Trajectory]:
    return [
        make_trajectory(
            index,
            seat,
            env_id=env_id,
            trained_seats=(0, 1) if mirror else (seat,),
            rewards={0: 1.0 - (index % 3), 1: (index % 3) - 1.0},
        )
        for index, env_id, mirror, seat in draws
    ]


@given(deliveries, st.integers(0, 40))
def test_folding_again_gives_the_same_bytes(draws: list[tuple[int, str, bool, int]], cut: int) -> None:
    events = _trajectories(draws)
    live = _processor()
    live_steps = _steps(live, *events)
    first = _processor()
    head = _steps(first, *events[:cut])
    resumed = _processor()
    resumed.load_state(json.loads(json.dumps(first.state())))
    assert _bytes(head + _steps(resumed, *events[cut:])) == _bytes(live_steps)
    assert json.dumps(resumed.state()) == json.dumps(live.state())

    ids = [s.event_id for s in live_steps]
    assert len(ids) == len(set(ids))


@given(deliveries)
def test_against_an_obvious_version_that_remembers_everything(
    draws: list[tuple[int, str, bool, int]],
) -> None:
    events = _trajectories([(index, "A", mirror, seat) for index, _, mirror, seat in draws])
    trained_of: dict[int, tuple[int, ...]] = {}
    # One game has one set of trained seats: keep what its first trajectory says.
    events = [e for e in events if trained_of.setdefault(e.game_index, e.trained_seats) == e.trained_seats]
    baselines: dict[int, float] = {}
    finals: dict[int, dict[int, float]] = {}
    seen: set[str] = set()
    expected = []
    for event in events:
        if event.game_index not in finals:
            finals[event.game_index] = {s: r - baselines.get(s, 0.0) for s, r in event.rewards.items()}
            for s in event.trained_seats:
                baselines[s] = 0.5 * baselines.get(s, 0.0) + 0.5 * event.rewards[s]
        if event.event_id not in seen:
            seen.add(event.event_id)
            expected += [(event.event_id, t, finals[event.game_index][event.seat] + 0.25) for t in range(2)]
    steps = _steps(_processor(), *events)
    assert [(s.trajectory_id, s.turn_index, s.reward) for s in steps] == expected


class _MeanOfAll(FinalRewardTransform):
    """Somebody's own: subtracts the mean of all rewards of seat 0 so far, and ignores the environment."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, x: dict[int, float], env_id: str | None = None) -> dict[int, float]:
        mean = sum(self.seen) / len(self.seen) if self.seen else 0.0
        self.seen.append(x[0])
        return {seat: reward - mean for seat, reward in x.items()}


@pytest.mark.parametrize(
    "final",
    [
        lambda: ComposeFinalRewardTransforms([RoleAdvantageFormatter(tau=0.5)]),
        lambda: ComposeFinalRewardTransforms([_MeanOfAll()]),
        ComposeFinalRewardTransforms([RoleAdvantageFormatter(tau=0.5), _MeanOfAll()]),  # copied
    ],
)
def test_steps_are_the_same_for_any_number_of_partitions(
    final: ComposeFinalRewardTransforms | Callable[[], ComposeFinalRewardTransforms],
) -> None:
    trajectories = [
        make_trajectory(index, env_id=f"Env-{index % 4}", rewards={0: float(index % 3), 1: 1.0})
        for index in range(60)
    ]
    steps: list[dict[str, bytes]] = []
    for partitions in (1, 6):
        shares: dict[int, list[Event]] = defaultdict(list)
        for trajectory in trajectories:
            shares[partition_for_key(trajectory.key, partitions)].append(trajectory)
        assert len(shares) > 1 or partitions == 1
        made = [s for share in shares.values() for s in _steps(RewardProcessor(RUN, final), *share)]
        steps.append({step.event_id: encode_event(step) for step in made})
    assert steps[0] == steps[1]
    assert len(steps[0]) == 120
