"""A2C: generalised advantages and the critic, worked out by hand."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.algorithms.policies import BigramPolicy
from tests.algorithms.test_reinforce import bound, sample
from unstable_stream.algorithms import A2C, TrainingSample
from unstable_stream.algorithms.a2c import generalised_advantages


def turn(index: int, reward: float, trajectory: str = "a") -> TrainingSample:
    made = sample([0, index % 4], [1], reward, step_id=f"{trajectory}{index}")
    return dataclasses.replace(made, trajectory_id=trajectory, turn_index=index)


def advantages(
    samples: Sequence[TrainingSample], values: Sequence[float], discount: float = 1.0, gae_lambda: float = 0.5
) -> list[float]:
    return generalised_advantages(samples, values, discount=discount, gae_lambda=gae_lambda)


def test_a_missing_turn_is_stepped_over() -> None:
    """Turns 0 and 2: the critic is asked two turns later, with lambda^2 for what lies beyond."""
    first = (0.4 - 0.2) + 0.5**2 * 0.6
    assert advantages([turn(0, 1.0), turn(2, 1.0)], [0.2, 0.4]) == pytest.approx([first, 0.6])


def test_trajectories_do_not_mix_and_order_does_not_matter() -> None:
    turns = [turn(0, 1.0), turn(1, 1.0), turn(0, -1.0, "b"), turn(1, -1.0, "b")]
    values = [0.1, 0.2, 0.3, 0.4]
    expected = advantages(turns[:2], values[:2]) + advantages(turns[2:], values[2:])
    order = [3, 0, 2, 1]
    found = advantages([turns[place] for place in order], [values[place] for place in order])
    assert found == pytest.approx([expected[place] for place in order])


def slow_advantage(
    rewards: Sequence[float], values: Sequence[float], place: int, discount: float, gae_lambda: float
) -> float:
    """The paper's sum over temporal differences, written down as it stands."""
    total = 0.0
    for later in range(place, len(rewards)):
        after = values[later + 1] if later + 1 < len(values) else 0.0
        delta = rewards[later] + discount * after - values[later]
        total += (discount * gae_lambda) ** (later - place) * delta
    return total


@given(
    data=st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=8),
    discount=st.floats(0.1, 1),
    gae_lambda=st.floats(0, 1),
)
def test_whole_trajectories_have_the_papers_estimate(
    data: list[tuple[float, float]], discount: float, gae_lambda: float
) -> None:
    rewards, values = [pair[0] for pair in data], [pair[1] for pair in data]
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.insert(0, reward + discount * (returns[0] if returns else 0.0))
    turns = [turn(place, each) for place, each in enumerate(returns)]
    found = advantages(turns, values, discount, gae_lambda)
    expected = [slow_advantage(rewards, values, place, discount, gae_lambda) for place in range(len(data))]
    assert found == pytest.approx(expected, abs=1e-6)


def ready(algorithm: A2C, policy: BigramPolicy, samples: Sequence[TrainingSample]) -> A2C:
    bound(algorithm, policy)
    algorithm.begin_update(samples, [range(len(samples))])
    return algorithm


def test_the_critic_reads_the_state_before_the_answer() -> None:
    """Bigram states are table rows of the prompt's last token; the critic starts at zero."""
    policy = BigramPolicy()
    with torch.no_grad():
        policy.table.weight[:] = torch.arange(16.0).reshape(4, 4) / 16
    samples = [turn(1, 1.0), turn(2, -1.0, "b")]
    algorithm = bound(A2C(), policy)
    assert isinstance(algorithm, A2C)
    with torch.no_grad():
        algorithm.critic.weight[:] = torch.tensor([[1.0, 0.0, 0.0, -1.0]])
        algorithm.critic.bias[:] = 0.5
    algorithm.begin_update(samples, [[1], [0]])
    batch = algorithm.prepare_batch(samples)
    values = [0.5 - 3 / 16, 0.5 - 3 / 16]
    assert batch.row_advantages.tolist() == pytest.approx([1 - values[0], -1 - values[1]])
    assert batch.row_rewards.tolist() == [1.0, -1.0]


def identity() -> BigramPolicy:
    policy = BigramPolicy()
    with torch.no_grad():
        policy.table.weight[:] = torch.eye(4)
    return policy


def test_the_critics_gradient_by_hand_and_none_for_the_policy() -> None:
    """Two samples, values zero: d/db of 1/2n sum (V - R)^2 is -mean(R); the policy gets only its own."""
    policy, plain = (identity() for _ in range(2))
    samples = [turn(1, 1.0), turn(2, 0.5, "b")]
    algorithm = ready(A2C(), policy, samples)
    sums = algorithm.update(algorithm.prepare_batch(samples), scale=0.5, update=1)
    assert algorithm.critic.bias.grad is not None
    assert algorithm.critic.weight.grad is not None
    assert algorithm.critic.bias.grad.item() == pytest.approx(-0.75)
    assert algorithm.critic.weight.grad[0].tolist() == pytest.approx([0.0, -0.5, -0.25, 0.0])
    without = ready(A2C(), plain, samples)
    without.critic.requires_grad_(False)
    without.update(without.prepare_batch(samples), scale=0.5, update=1)
    torch.testing.assert_close(policy.table.weight.grad, plain.table.weight.grad)
    metrics = algorithm.summarize({name: value.item() for name, value in sums.items()})
    assert metrics["value_loss"] == pytest.approx((1 + 0.25) / 4)
    assert metrics["value_mean"] == 0.0
    assert metrics["value_explained_variance"] == pytest.approx(1 - 0.625 / 0.0625)


def test_normalised_advantages_keep_their_sign_and_have_spread_one() -> None:
    samples = [turn(0, 2.0), turn(0, 4.0, "b"), turn(0, 6.0, "c")]
    algorithm = ready(A2C(normalize_advantages=True), BigramPolicy(), samples)
    found = algorithm.prepare_batch(samples).row_advantages
    assert found.std(correction=0).item() == pytest.approx(1.0)
    assert found.tolist() == pytest.approx([each / (8 / 3) ** 0.5 for each in (2.0, 4.0, 6.0)])
