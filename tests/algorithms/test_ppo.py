"""PPO worked out by hand on a bigram table, against the objective as the paper writes it.

Its critic begins at 0, so the advantage of a single turn is its reward.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.algorithms.policies import BigramPolicy, with_row
from tests.algorithms.test_reinforce import UNIFORM, bound, gradient, sample
from unstable_stream.algorithms import PPO
from unstable_stream.errors import LearnerError


def test_its_defaults_are_those_of_the_paper() -> None:
    algorithm = PPO()
    settings = algorithm.settings
    assert settings.gae_lambda == 0.95
    assert [*bound(algorithm, BigramPolicy()).networks()] == ["critic"]
    assert (algorithm.epochs, settings.clip_low, settings.clip_high, settings.is_clip) == (4, 0.2, 0.2, 3.0)
    with pytest.raises(LearnerError, match="epochs is 0"):
        PPO(epochs=0)


@pytest.mark.parametrize(
    ("advantage", "ratio", "factor"),
    [
        (1.0, 1.1, 1.1),  # within the trust region: the ratio itself
        (1.0, 1.3, 0.0),  # it has gone far enough up
        (1.0, 0.5, 0.5),  # it may come back
        (-1.0, 0.5, 0.0),  # it has gone far enough down
        (-1.0, 1.3, 1.3),  # it may come back
        (-1.0, 5.0, 3.0),  # is_clip bounds what the objective leaves unbounded
    ],
)
def test_one_token_by_hand(advantage: float, ratio: float, factor: float) -> None:
    """Prompt 0, token 1, a uniform policy: the row is pushed by ratio * (one-hot - 1/4) * A / L, or not."""
    grad, _ = gradient(PPO(), [sample([0], [1], advantage=advantage, logprobs=[UNIFORM - math.log(ratio)])])
    expected = torch.zeros(4, 4)
    expected[0] = -factor * advantage / 10 * (torch.tensor([0.0, 1, 0, 0]) - 0.25)
    torch.testing.assert_close(grad, expected)


@given(
    logits=st.lists(st.floats(-2, 2), min_size=4, max_size=4),
    behaviour=st.floats(-4, -0.1),
    advantage=st.floats(-2, 2),
)
def test_its_gradient_is_that_of_the_clipped_objective(
    logits: list[float], behaviour: float, advantage: float
) -> None:
    """Equation 7 written down as it stands, differentiated by PyTorch."""
    policy = with_row(BigramPolicy(), 2, logits)
    grad, _ = gradient(PPO(is_clip=None, clip_high=0.28), [sample([2], [3], advantage, [behaviour])], policy)

    table = torch.tensor(logits, requires_grad=True)
    recorded = torch.tensor(np.float32(behaviour))
    ratio = (torch.log_softmax(table, 0)[3] - recorded).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
    (-objective / 10).backward()  # type: ignore[no-untyped-call]
    if abs(ratio.item() - 0.8) > 1e-4 and abs(ratio.item() - 1.28) > 1e-4:
        torch.testing.assert_close(grad[2], table.grad, rtol=1e-4, atol=1e-5)
