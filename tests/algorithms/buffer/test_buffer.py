"""The step buffer: a function of the set of steps, every id used once, batches that can be recomputed."""

import hashlib
import math
import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.buffer.steps import make_step, make_update
from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.errors import ConfigError, LearnerError
from unstable_stream.events import DroppedStep, Step

pytestmark = pytest.mark.longer

STRATEGIES: list[str] = ["random", "fifo", "prioritised"]


def ids(steps: tuple[Step, ...] | list[Step]) -> list[str]:
    return [step.event_id for step in steps]


def filled(steps: list[Step], size: int = 1000, strategy: str = "random", **kwargs: Any) -> StepBuffer:
    buffer = StepBuffer(size, strategy, **kwargs)
    buffer.extend(steps)
    return buffer


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(
    order=st.randoms(use_true_random=False),
    size=st.integers(1, 60),
    cuts=st.lists(st.integers(1, 9), max_size=12),
)
@settings(max_examples=30, deadline=None)
def test_arrival_order_and_grouping_do_not_matter(
    strategy: str, order: random.Random, size: int, cuts: list[int]
) -> None:
    steps = [make_step(game, turn, policy_version=game // 7) for game in range(20) for turn in range(3)]
    expected = filled(steps, size, strategy, seed=5, max_staleness=1)
    shuffled = steps + steps[:10]  # some arrive twice
    order.shuffle(shuffled)
    found = StepBuffer(size, strategy, seed=5, max_staleness=1)
    for cut in cuts:
        found.extend(shuffled[:cut])
        assert found.size() <= size
        shuffled = shuffled[cut:]
    for step in shuffled:
        found.add(step)
    assert found.size() == expected.size() == size
    for update in (1, 2, 3, 4):
        assert found.available(update) == expected.available(update)
        assert found.get_batch(10, update) == expected.get_batch(10, update)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_id_is_trained_or_dropped_once(strategy: str) -> None:
    buffer = StepBuffer(50, strategy, seed=1, max_staleness=2)
    used: Counter[str] = Counter()
    everything: list[Step] = []
    for update in range(1, 11):
        arriving = [
            make_step(update * 100 + index, policy_version=max(0, update - index % 5)) for index in range(40)
        ]
        everything += arriving
        buffer.extend(arriving)
        buffer.extend(arriving[:7])
        batch = buffer.get_batch(20, update)
        assert len(batch.steps) == 20
        used.update(ids(batch.steps))
        used.update(drop.step_id for drop in batch.dropped)
    assert set(used.values()) == {1}
    assert len(everything) == len(used) + buffer.size()
    last = buffer.get_batch(50, 11)
    buffer.extend(everything)
    assert buffer.size() == 0, "an id is recognised however long ago it was used"
    assert {*used, *ids(last.steps), *(drop.step_id for drop in last.dropped)} == {*ids(everything)}


def priority_in(stream: int) -> Callable[[Step], int]:
    """The priorities of a run with the seed 7, for an update or the overflow before it."""
    key = plain_mix((plain_mix(7) + stream) % 2**64)

    def priority(step: Step) -> int:
        hi, lo = struct.unpack("<QQ", hashlib.blake2b(step.event_id.encode(), digest_size=16).digest())
        return plain_mix(plain_mix(hi ^ key) ^ lo)

    return priority


def plain_mix(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def test_overflow_and_batch_are_uniform_draws_whatever_came_first() -> None:
    kept, drawn = np.zeros(60), np.zeros(60)
    for seed in range(400):
        buffer = StepBuffer(20, seed=seed)
        for index in range(60):
            buffer.add(make_step(index))
        first, rest = buffer.get_batch(10, 1), buffer.get_batch(10, 2)
        drawn[[step.game_index for step in first.steps]] += 1
        kept[[step.game_index for step in (*first.steps, *rest.steps)]] += 1
    # Binomials of 400; chi-square has 59 degrees, 99.9 % below 99.
    for counts, share in ((kept, 1 / 3), (drawn, 1 / 6)):
        assert float(((counts - 400 * share) ** 2 / (400 * share * (1 - share))).sum()) < 99
    assert kept[:20].sum() / kept.sum() == pytest.approx(1 / 3, abs=0.02)


def mean_staleness(arriving: int, draws: str) -> float:
    """Of batches of 20 from a buffer of 80, to which so many steps come before each of 40 updates."""
    buffer = StepBuffer(80, seed=3, overflow_draws=draws)  # type: ignore[arg-type]
    found: list[int] = []
    for update in range(1, 41):
        new = [make_step(1000 * update + index, policy_version=update - 1) for index in range(arriving)]
        for part in (new[::2], new[1::2]):
            buffer.extend(part)
            buffer.available(update)  # it may be asked at any time
        batch = buffer.get_batch(20, update)
        found += [update - 1 - step.policy_version for step in batch.steps if update > 20]
    return sum(found) / len(found)


@pytest.mark.parametrize("arriving", [40, 60, 120])
def test_the_more_arrives_the_younger_is_what_overflow_keeps(arriving: int) -> None:
    # Of 60 that wait and those that arrive a random 80 stay, of which 20 are drawn: any one waits for the
    # next update with probability q = 60 / (60 + arriving), and the mean of its age is q / (1 - q).
    assert mean_staleness(arriving, "each-update") == pytest.approx(60 / arriving, abs=0.25)
    assert mean_staleness(arriving, "once") > 2.0  # as recorded before: old ones gather


def test_a_run_recorded_before_keeps_its_draws() -> None:
    """Another process, Python or NumPy must draw the same: overflow and batches in plain integers."""
    assert plain_mix(0) == 0xE220A8397B1DCDAF  # the published splitmix64 sequence for seed 0 starts so
    steps = [make_step(index) for index in range(30)]
    for draws, overflow in (("once", 0), ("each-update", 2**63 + 4)):
        batch = filled(steps, 10, seed=7, overflow_draws=draws).get_batch(3, 4)
        order = sorted(steps, key=priority_in(overflow))
        assert sorted(drop.step_id for drop in batch.dropped) == sorted(ids(order[:20]))
        assert ids(batch.steps) == ids(sorted(order[20:], key=priority_in(4))[:3])


def test_stale_steps_are_dropped_at_the_draw() -> None:
    fresh = [make_step(index, policy_version=3) for index in range(3)]
    old = [make_step(index, policy_version=2) for index in range(10, 12)]
    stale = [make_step(index, policy_version=1) for index in range(20, 24)]
    buffer = filled([*stale, *fresh, *old], max_staleness=1)
    assert buffer.available(4) == 5  # update 4 trains on version 3, so version 2 lags by one
    assert buffer.size() == 9
    batch = buffer.get_batch(9, 4)
    assert set(ids(batch.steps)) == set(ids(fresh + old))
    assert set(batch.dropped) == {DroppedStep(step.event_id, "stale") for step in stale}
    assert buffer.size() == 0
    assert filled(stale, max_staleness=0).available(2) == 4
    assert filled(stale).available(1_000_000) == 4  # no limit


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rebuilt_buffer_goes_on_like_the_live_one(strategy: str) -> None:
    live = StepBuffer(60, strategy, seed=3, max_staleness=3)
    seen: list[Step] = []
    updates = []
    for number in range(1, 7):
        arriving = [make_step(number * 100 + index, policy_version=number - 1) for index in range(35)]
        live.extend(arriving)
        seen += arriving
        batch = live.get_batch(16, number)
        updates.append(make_update(number, ids(batch.steps), batch.dropped))
    tail = [make_step(900 + index, policy_version=6) for index in range(50)]  # overflows, not reported yet
    live.extend(tail)
    seen += tail

    rebuilt = StepBuffer(60, strategy, seed=3, max_staleness=3)
    for update in updates:
        rebuilt.apply(update)
    random.Random(0).shuffle(seen)
    rebuilt.extend(seen)
    assert rebuilt.size() == live.size()
    assert rebuilt.get_batch(16, 7) == live.get_batch(16, 7)
    assert rebuilt.get_batch(16, 8) == live.get_batch(16, 8)


def test_apply_removes_pending_steps_and_is_idempotent() -> None:
    steps = [make_step(index) for index in range(10)]
    buffer = filled(steps)
    update = make_update(1, ids(steps[:4]), (DroppedStep(steps[9].event_id, "stale"),))
    buffer.apply(update)
    buffer.apply(update)
    buffer.extend(steps)
    assert buffer.size() == 5
    assert set(ids(buffer.get_batch(10, 2).steps)) == set(ids(steps[4:9]))


def test_apply_withdraws_an_overflow_that_was_reported_already() -> None:
    steps = [make_step(index) for index in range(12)]
    buffer = filled(steps, 10)
    victims = StepBuffer(10)
    victims.extend(steps)
    dropped = victims.get_batch(1, 1).dropped
    assert buffer.available(1) == 10
    buffer.apply(make_update(1, [], dropped))
    assert buffer.get_batch(1, 2).dropped == ()


def rewarded(*rewards: float) -> list[Step]:
    return [msgspec.structs.replace(make_step(game), reward=reward) for game, reward in enumerate(rewards)]


def test_prioritised_drops_small_rewards_first_and_an_exponent_of_zero_is_uniform() -> None:
    steps = rewarded(*[10.0] * 20, *[0.0] * 20)
    strategy = "prioritised(exponent=1.0, floor=1e-9)"
    batch = filled(steps, 20, strategy).get_batch(20, 1)
    assert {step.reward for step in batch.steps} == {10.0}
    assert len(batch.dropped) == 20
    uniform = filled(steps, seed=7, strategy="prioritised(exponent=0)").get_batch(9, 3)
    assert uniform.steps[::-1] == filled(steps, seed=7).get_batch(40, 3).steps[-9:]


@pytest.mark.parametrize(
    ("arguments", "exponent", "floor"), [("", 0.6, 0.01), ("(exponent=1.0, floor=0.5)", 1.0, 0.5)]
)
def test_prioritised_keys_are_the_same_everywhere(arguments: str, exponent: float, floor: float) -> None:
    """Another process or machine must draw the same batch: computed apart, number by number."""
    steps = rewarded(0.5, -0.25, 1.0, 0.0, -1.0, 0.75)

    def exponential(step: Step) -> float:
        uniform = ((priority_in(3)(step) >> 11) + 0.5) * 2.0**-53
        return float(-math.log(uniform) / (abs(step.reward) + floor) ** exponent)

    batch = filled(steps, seed=7, strategy=f"prioritised{arguments}").get_batch(6, 3)
    assert ids(batch.steps) == ids(sorted(steps, key=exponential))


def by_size_of_reward(step: Step, update: int, seed: int, sign: float = -1.0) -> float:
    return sign * abs(step.reward)


def test_an_own_strategy_trains_on_its_lowest_ranks_and_drops_its_highest() -> None:
    rewards = (-6.0, 5.0, -4.0, 3.0, 2.0, 1.0, 0.0)
    steps = rewarded(*rewards)
    batch = filled(steps, 5, f"{__name__}:by_size_of_reward").get_batch(2, 1)
    assert [step.reward for step in batch.steps] == [-6.0, 5.0]
    dropped = {step.event_id for step in steps[-2:]}  # rewards 1 and 0
    assert {(drop.reason, drop.step_id) for drop in batch.dropped} == {("overflow", name) for name in dropped}
    upside_down = filled(steps, 7, f"{__name__}:by_size_of_reward(sign=1.0)").get_batch(1, 1)
    assert upside_down.steps[0].reward == 0.0


def unranked(step: Step, update: int, seed: int) -> float:
    return float("nan")


def two_arguments(step: Step, update: int) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_buffer_size": 0}, "max_buffer_size is 0"),
        ({"max_staleness": -1}, "max_staleness is -1"),
        ({"strategy": "lifo"}, r"'lifo'; did you mean fifo\? known: random, fifo, prioritised"),
        ({"strategy": "prioritised(exponent=-1.0)"}, "prioritised"),
        ({"strategy": "prioritised(floor=0.0)"}, "prioritised"),
        ({"strategy": "prioritised(weight=1.0)"}, "prioritised"),
        ({"strategy": f"{__name__}:two_arguments"}, r"called with .*too many.*expected rank\(step: Step"),
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, LearnerError), match=message):
        StepBuffer(**{"max_buffer_size": 1} | arguments)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(LearnerError, match="count from 1"):
        StepBuffer(1).get_batch(1, 0)
    with pytest.raises(LearnerError, match=r"ranked step .* at nan; expected a finite number"):
        filled([make_step(0)], 1, f"{__name__}:unranked").get_batch(1, 1)
