"""An update's decisions: worked by hand, against a slow obvious version, and without torch."""

from functools import partial
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.algorithms.buffer.steps import make_step, make_update
from unstable_stream.algorithms.buffer import StepBuffer
from unstable_stream.algorithms.update_decisions import (
    Admission,
    admission,
    decide_batch,
    decide_update,
    drawn_ids,
    shaped_rewards,
)
from unstable_stream.errors import ConfigError
from unstable_stream.events import DroppedStep, Step, pack_floats, pack_tokens
from unstable_stream.reward_transformations import Sample, build_sampling

unchanged = build_sampling([])
centred = build_sampling([{"type": "NormalizeRewards"}])
everything = partial(admission, max_train_len=None)


def step(index: int, **fields: object) -> Step:
    return msgspec.structs.replace(make_step(index), **fields)


def test_a_recorded_batch_gives_the_advantages_that_it_was_trained_with() -> None:
    steps = [step(index, reward=float(index % 3), truncated=index % 4 == 0) for index in range(12)]
    buffer = StepBuffer(12, seed=5)
    buffer.extend(steps)
    admit = partial(everything, truncated_turns="drop")
    live = decide_update(buffer, 8, 1, centred, admit)
    record = make_update(1, list(live.trained_ids), live.dropped)
    by_id = {each.event_id: each for each in steps}
    again = decide_batch([by_id[step_id] for step_id in drawn_ids(record)], 1, centred, admit)
    assert 0 < len(live.dropped) < 8
    assert again.trained_ids == live.trained_ids
    assert {each.step_id: each.advantage for each in again.samples} == {
        each.step_id: each.advantage for each in live.samples
    }


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3), st.booleans()), max_size=25), st.integers(1, 8)
)
def test_against_a_slow_version(rows: list[tuple[int, int, bool]], batch_size: int) -> None:
    """Oldest first, at most 10 kept, none staler than two versions, cut ones left out, the mean taken off."""
    steps = [
        msgspec.structs.replace(
            make_step(index // 2, index % 2), policy_version=version, reward=float(reward), truncated=cut
        )
        for index, (version, reward, cut) in enumerate(rows)
    ]
    waiting = sorted(steps, key=lambda each: (each.policy_version, each.game_index, each.turn_index))
    overflow, waiting = waiting[: max(0, len(waiting) - 10)], waiting[max(0, len(waiting) - 10) :]
    stale = [each for each in waiting if each.policy_version < 1]
    fresh = [each for each in waiting if each.policy_version >= 1]
    batch, rest = fresh[:batch_size], fresh[batch_size:]
    mean = sum(each.reward for each in batch) / len(batch) if batch else 0.0

    Random(1).shuffle(steps)
    buffer = StepBuffer(10, strategy="fifo", max_staleness=2)
    buffer.extend(steps)
    decision = decide_update(buffer, batch_size, 4, centred, partial(everything, truncated_turns="drop"))
    assert decision.trained_ids == tuple(each.event_id for each in batch if not each.truncated)
    assert [sample.advantage for sample in decision.samples] == pytest.approx(
        [each.reward - mean for each in batch], abs=1e-12
    )
    assert set(decision.dropped) == {
        *(DroppedStep(each.event_id, "overflow") for each in overflow),
        *(DroppedStep(each.event_id, "stale") for each in stale),
        *(DroppedStep(each.event_id, "truncated") for each in batch if each.truncated),
    }
    assert decision.admissions == tuple("drop" if each.truncated else "train" for each in batch)
    if not batch:
        assert decision.metrics == {}
        return
    lags = [3 - each.policy_version for each in batch]  # update 4 trains on version 3 if on policy
    told = {"reward_mean": mean, "buffer_size": len(rest)}
    told |= {"staleness_mean": sum(lags) / len(lags), "staleness_max": max(lags)}
    assert decision.metrics == pytest.approx(told, abs=1e-12)


@pytest.mark.parametrize(
    ("prompt", "completion", "truncated", "cut_off", "setting", "decision"),
    [
        ([1, 2, 3], [4], False, None, "train", "train"),
        ([1, 2, 3, 4], [5], False, None, "train", "drop"),
        ([1], [], True, None, "drop", "mask"),
        ([1], [2], False, None, "drop", "train"),
        ([1], [2], True, True, "drop", "drop"),  # the answer was cut before it named an action
        ([1], [2], True, False, "drop", "train"),  # behind its action, as every answer of one token is
        ([1], [2], True, None, "drop", "drop"),  # recorded before players looked for an action
        ([1], [2], True, None, "mask", "mask"),
    ],
)
def test_admission(
    prompt: list[int],
    completion: list[int],
    truncated: bool,
    cut_off: bool | None,
    setting: Admission,
    decision: Admission,
) -> None:
    turn = step(
        0,
        prompt_token_ids=pack_tokens(prompt),
        completion_token_ids=pack_tokens(completion),
        logprobs=pack_floats([-1.0] * len(completion)),
        truncated=truncated,
        cut_off=cut_off,
    )
    admit = partial(admission, max_train_len=4, truncated_turns=setting)
    assert decide_batch([turn], 1, unchanged, admit).admissions == (decision,)


def test_a_transformation_may_not_leave_samples_out() -> None:
    def half(samples: list[Sample]) -> list[Sample]:
        return samples[::2]

    with pytest.raises(ConfigError, match="made 2 samples of a batch of 3"):
        shaped_rewards([make_step(index) for index in range(3)], half)
