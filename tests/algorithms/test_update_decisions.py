"""An update's decisions: worked by hand, against a slow obvious version, and without torch."""

import subprocess
import sys
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
    TrainingSample,
    admission,
    decide_batch,
    decide_update,
    drawn_ids,
    shaped_rewards,
)
from unstable_stream.errors import ConfigError, LearnerError
from unstable_stream.events import DroppedStep, Step, pack_floats, pack_tokens
from unstable_stream.reward_transformations import Sample, build_sampling

unchanged = build_sampling([])
centred = build_sampling([{"type": "NormalizeRewards"}])
everything = partial(admission, max_train_len=None)


def step(index: int, **fields: object) -> Step:
    return msgspec.structs.replace(make_step(index), **fields)


@pytest.mark.parametrize("decided", ["mask", "drop"])
@pytest.mark.parametrize(
    ("truncated", "cut_off", "left_out"),
    [
        (True, True, True),  # the answer was cut before it named an action
        (True, False, False),  # it was cut behind its action, as every answer of one token is
        (True, None, True),  # recorded before players looked for an action
        (False, None, False),
    ],
)
def test_truncated_is_cut_before_an_action(
    decided: Admission, truncated: bool, cut_off: bool | None, left_out: bool
) -> None:
    turn = step(0, truncated=truncated, cut_off=cut_off)
    admit = partial(everything, truncated_turns=decided)
    assert decide_batch([turn], 1, unchanged, admit).admissions == (decided if left_out else "train",)


def test_an_update_by_hand() -> None:
    buffer = StepBuffer(4, strategy="fifo", max_staleness=1)
    # Update 3 trains on version 2 if on policy, and takes version 1 besides.
    old = step(0, policy_version=0)
    first = step(1, policy_version=1, reward=3.0, truncated=True)
    second = step(2, policy_version=2, reward=1.0)
    third = step(3, policy_version=2, reward=-1.0)
    oldest = step(4, policy_version=-1)  # the fifth of four: fifo gives up the first in its order
    buffer.extend([third, old, oldest, second, first])
    decision = decide_update(buffer, 2, 3, centred, partial(everything, truncated_turns="drop"))
    assert decision.trained_ids == (second.event_id,)
    assert decision.dropped == (
        DroppedStep(oldest.event_id, "overflow"),
        DroppedStep(old.event_id, "stale"),
        DroppedStep(first.event_id, "truncated"),
    )
    assert [sample.advantage for sample in decision.samples] == [1.0, -1.0], "3 and 1 less their mean"
    assert decision.admissions == ("drop", "train")
    assert decision.metrics == {
        "staleness_mean": 0.5,
        "staleness_max": 1.0,
        "reward_mean": 2.0,
        "buffer_size": 1.0,
    }


def test_of_an_empty_buffer_nothing_is_decided() -> None:
    decision = decide_update(StepBuffer(4), 2, 1, centred, everything)
    assert (decision.samples, decision.dropped, decision.metrics) == ((), (), {})


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
        step(index, policy_version=version, reward=float(reward), truncated=cut)
        for index, (version, reward, cut) in enumerate(rows)
    ]
    waiting = sorted(steps, key=lambda each: (each.policy_version, each.game_index))
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
    assert decision.metrics.get("buffer_size", 0.0) == len(rest)


@pytest.mark.parametrize(
    ("prompt", "completion", "truncated", "setting", "decision"),
    [
        ([1, 2, 3], [4], False, "train", "train"),
        ([1, 2, 3, 4], [5], False, "train", "drop"),
        ([1], [], True, "drop", "mask"),
        ([1], [2], True, "mask", "mask"),
        ([1], [2], True, "drop", "drop"),
        ([1], [2], False, "drop", "train"),
    ],
)
def test_admission(
    prompt: list[int], completion: list[int], truncated: bool, setting: Admission, decision: Admission
) -> None:
    sample = TrainingSample.from_step(
        step(
            0,
            prompt_token_ids=pack_tokens(prompt),
            completion_token_ids=pack_tokens(completion),
            logprobs=pack_floats([-1.0] * len(completion)),
            truncated=truncated,
        ),
        1.0,
    )
    assert admission(sample, max_train_len=4, truncated_turns=setting) == decision


def test_a_step_that_cannot_be_trained_on_is_named() -> None:
    bad = step(0, logprobs=pack_floats([]))
    with pytest.raises(LearnerError, match=f"{bad.event_id} has 1 completion tokens but 0"):
        decide_batch([bad], 1, unchanged, everything)


def test_a_transformation_may_not_leave_samples_out() -> None:
    def half(samples: list[Sample]) -> list[Sample]:
        return samples[::2]

    with pytest.raises(ConfigError, match="made 2 samples of a batch of 3"):
        shaped_rewards([make_step(index) for index in range(3)], half)


def test_deciding_and_proving_load_no_torch() -> None:
    code = (
        "import sys, unstable_stream.algorithms.update_decisions, unstable_stream.history.proofs.verify, "
        "unstable_stream.history.hindsight.rederive; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
