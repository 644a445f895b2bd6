"""DPO and IPO worked out by hand on a bigram table: each answer of a pair gets the factor of the pair."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.algorithms.policies import BigramPolicy
from tests.algorithms.test_reinforce import bound, gradient, sample
from unstable_stream.algorithms.preference import Preference, pair_loss
from unstable_stream.algorithms.update_decisions import TrainingSample
from unstable_stream.errors import LearnerError


def answers(pair: str = "p") -> list[TrainingSample]:
    """A pair at the prompt 0: token 2 was chosen, token 3 rejected."""
    chosen = replace(sample([0], [2], advantage=1.0, step_id=f"{pair}+"), pair=pair)
    return [chosen, replace(sample([0], [3], advantage=-1.0, step_id=f"{pair}-"), pair=pair)]


@pytest.mark.parametrize("ipo", [False, True])
@pytest.mark.parametrize("margin", [-900.0, -1.5, 0.0, 0.7, 40.0])
def test_the_factor_is_the_negative_derivative_of_the_loss(margin: float, ipo: bool) -> None:
    step = 1e-4
    losses = [pair_loss(at, 0.3, ipo=ipo)[0] for at in (margin - step, margin + step)]
    factor = pair_loss(margin, 0.3, ipo=ipo)[1]
    assert factor == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-4, abs=1e-4)
    assert all(map(math.isfinite, losses))


@pytest.mark.parametrize(("loss", "factor"), [("dpo", 0.4 / 2), ("ipo", 1 / 0.4)])
def test_at_the_reference_by_hand(loss: str, factor: float) -> None:
    """Margin 0: the factor pushes row 0 by (one-hot of 2 - one-hot of 3) / L, in the mean of two answers."""
    algorithm = Preference(beta=0.4, loss=loss)
    grad, _ = gradient(algorithm, answers())
    expected = torch.zeros(4, 4)
    expected[0] = -factor / 10 / 2 * torch.tensor([0.0, 0, 1, -1])
    torch.testing.assert_close(grad, expected)


def test_a_pair_that_is_told_apart_has_its_margin_and_a_smaller_factor() -> None:
    policy = BigramPolicy()
    algorithm = bound(Preference(beta=0.5), policy)  # the reference is the uniform policy
    with torch.no_grad():
        policy.table.weight[0] = torch.tensor([0.0, 0, 1.5, -0.5])
        algorithm.begin_step(answers(), algorithm.measure(answers()), np.random.default_rng(0))
    batch = algorithm.prepare_batch(answers())
    loss, factor = pair_loss(2.0, 0.5, ipo=False)
    assert batch.row_advantages.tolist() == pytest.approx([factor, -factor])
    assert factor == pytest.approx(0.5 / (1 + math.e))
    metrics = algorithm.summarize({"tokens": 0.0})
    found = {name: value for name, value in metrics.items() if name.startswith("pair_")}
    assert found == pytest.approx({"pair_loss": loss, "pair_margin": 2.0, "pair_accuracy": 1.0})
    assert "pair_loss" not in algorithm.summarize({"tokens": 0.0})


def test_an_answer_without_its_partner_is_not_trained_on() -> None:
    whole, half = answers("whole"), answers("half")[:1]
    alone, _ = gradient(Preference(), [*whole, *half])
    pair, _ = gradient(Preference(), whole)
    torch.testing.assert_close(alone, pair * 2 / 3)
    unpaired, _ = gradient(Preference(), [sample([0], [2])])
    assert not unpaired.any()


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(LearnerError, match="dpo has no trust region, Clip-Cov or KL-Cov"):
        Preference(kl_cov_ratio=0.1)
