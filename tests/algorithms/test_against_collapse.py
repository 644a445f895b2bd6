"""The options against collapse, worked out by hand on a bigram table."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.algorithms.policies import AdaptedBigramPolicy, BigramPolicy, with_row
from tests.algorithms.test_reinforce import UNIFORM, bound, gradient, sample
from unstable_stream.algorithms import Reinforce, TrainingSample
from unstable_stream.algorithms.reinforce import clip_cov_tokens, kl_cov_tokens, token_covariances
from unstable_stream.errors import LearnerError

LOGITS = torch.tensor([1.0, 0.0, -1.0, 0.5])


# -- divergence from a reference -------------------------------------------------------------


def test_the_penalty_pulls_towards_the_base_model_whatever_was_sampled() -> None:
    """With advantage 0 only the gradient of ``b KL(pi || base) / L`` is left; the base is uniform."""
    for sampled, ratio in ((2, 1.0), (0, 8.0)):
        policy = with_row(AdaptedBigramPolicy(), 0, LOGITS)
        probabilities = torch.softmax(LOGITS, 0)
        logprob = probabilities[sampled].log().item() - math.log(ratio)
        turn = sample([0], [sampled], advantage=0.0, logprobs=[logprob])
        grad, sums = gradient(Reinforce(kl_coef=0.5), [turn], policy)
        log_ratios = probabilities.log() - UNIFORM
        divergence = (probabilities * log_ratios).sum()
        torch.testing.assert_close(grad[0], 0.5 * probabilities * (log_ratios - divergence) / 10)
        assert sums["reference_kl"] == pytest.approx(divergence.item(), rel=1e-5)
        assert sums["loss"] == pytest.approx(0.5 * divergence.item() / 10, rel=1e-5)


def answers(length: int, end: int) -> list[list[int]]:
    """All answers of tokens 0 to 3 that end at the token ``end``, or at the limit."""
    open_ended: list[list[int]] = [[]]
    found = []
    for _ in range(length):
        grown = [[*answer, token] for answer in open_ended for token in range(4)]
        found += [answer for answer in grown if answer[-1] == end]
        open_ended = [answer for answer in grown if answer[-1] != end]
    return found + open_ended


@pytest.mark.parametrize("length", [1, 3])
def test_the_expected_penalty_of_whole_answers_is_the_gradient_of_their_divergence(length: int) -> None:
    """By enumeration: token 3 ends an answer, so an early token decides on how much divergence follows."""
    torch.manual_seed(3)
    policy = AdaptedBigramPolicy()
    with torch.no_grad():
        policy.table.weight.normal_()
        policy.table.base.normal_()
    found = answers(length, end=3)
    rows = {
        name: torch.log_softmax(table, -1)
        for name, table in (("policy", policy.table.base + policy.table.weight), ("base", policy.table.base))
    }

    def logprobs(name: str, answer: list[int]) -> torch.Tensor:
        return torch.stack([rows[name][before][token] for before, token in pairwise([0, *answer])])

    sums = torch.stack([torch.stack([logprobs(name, answer).sum() for name in rows]) for answer in found])
    probability = sums[:, 0].exp()
    assert probability.sum().item() == pytest.approx(1.0)
    divergence = (probability * (sums[:, 0] - sums[:, 1])).sum()
    (true,) = torch.autograd.grad(divergence / 10, policy.table.weight, retain_graph=True)
    algorithm = bound(Reinforce(kl_coef=1.0), policy)
    # A second answer in the batch: what is later must be later in the same answer.
    other = sample([1], [2, 0], 0.0, [rows["policy"][1][2].item(), rows["policy"][2][0].item()])

    def of(samples: list[TrainingSample]) -> torch.Tensor:
        policy.table.weight.grad = None
        algorithm.update(algorithm.prepare_batch(samples), scale=1.0, update=1)
        assert policy.table.weight.grad is not None
        return policy.table.weight.grad

    expected = -of([other])
    for answer, weight in zip(found, probability.tolist(), strict=True):
        expected += weight * of([sample([0], answer, 0.0, logprobs("policy", answer).tolist()), other])
    torch.testing.assert_close(expected, true, rtol=1e-4, atol=1e-6)


def test_the_adapter_is_on_again_after_scoring_the_base_model() -> None:
    policy = with_row(AdaptedBigramPolicy(), 0, LOGITS)
    algorithm = bound(Reinforce(), policy)
    batch = algorithm.prepare_batch([sample([0], [2])])
    assert algorithm.has_base
    assert algorithm.states_of(batch, None).states.tolist() == [[0.0] * 4]
    expected = torch.log_softmax(LOGITS, 0)[2].item()
    assert algorithm.score(batch)[0].tolist() == pytest.approx([expected])
    divergence = (LOGITS.softmax(0) * (LOGITS.log_softmax(0) - UNIFORM)).sum().item()
    assert algorithm.divergence([sample([0], [2])]).tolist() == pytest.approx([divergence], rel=1e-5)


def test_a_policy_without_an_adapter_has_no_base_model() -> None:
    assert not bound(Reinforce(), BigramPolicy()).has_base
    with pytest.raises(LearnerError, match="no adapter to switch off"):
        bound(Reinforce(kl_coef=0.1), BigramPolicy())


# -- Clip-Cov and KL-Cov ---------------------------------------------------------------------


def test_covariances_are_centred_products() -> None:
    found = token_covariances(np.array([2.0, 0.0, -2.0, 0.0]), np.array([-1.0, -1.0, -5.0, -5.0]))
    assert found.tolist() == [4.0, 0.0, 4.0, 0.0]  # means 0 and -3


def test_clip_cov_draws_only_between_its_bounds() -> None:
    covariances = np.array([0.5, 1.0, 2.0, 4.9, 5.0, 3.0])
    eligible = np.array([True, True, True, True, True, False])

    def chosen(ratio: float, low: float = 1.0, seed: int = 0) -> list[int]:
        generator = np.random.default_rng(seed)
        flags = clip_cov_tokens(covariances, eligible, generator, ratio=ratio, low=low, high=5.0)
        return [int(place) for place in np.flatnonzero(flags)]

    assert chosen(1.0) == [2, 3]
    assert {tuple(chosen(0.2, seed=seed)) for seed in range(20)} == {(2,), (3,)}  # 1.2 of six
    assert chosen(0.16) == []  # 0.96 of six
    assert chosen(0.5, low=6.0) == []


def test_kl_cov_takes_the_largest_share_rounded_down() -> None:
    covariances = np.array([0.5, -9.0, 2.0, 4.9])
    assert kl_cov_tokens(covariances, ratio=0.5).tolist() == [False, False, True, True]
    assert kl_cov_tokens(covariances, ratio=0.49).tolist() == [False, False, False, True]
    assert not kl_cov_tokens(covariances, ratio=0.24).any()
    hundred = np.arange(100, dtype=np.float64)
    assert kl_cov_tokens(hundred, ratio=0.29).sum() == 29  # in floats .29 * 100 is below 29
    assert kl_cov_tokens(np.zeros(4), ratio=0.5).tolist() == [True, True, False, False]


ROWS = [
    sample([0], [1], 2.0, logprobs=[UNIFORM + 0.3], step_id="first"),
    sample([1], [1], -2.0, logprobs=[UNIFORM], step_id="second"),
    sample([2], [1], 0.5, logprobs=[UNIFORM], step_id="third"),
    sample([3], [1], -0.5, logprobs=[UNIFORM], step_id="fourth"),
]


def skewed() -> BigramPolicy:
    """Token 1 is likely after 0, so its positive advantage there carries most of the covariance."""
    return with_row(BigramPolicy(), 0, [0.0, 4.0, 0.0, 0.0])


def test_clip_cov_removes_the_gradient_of_the_chosen_token() -> None:
    plain, _ = gradient(Reinforce(), ROWS, skewed())
    clip_cov = Reinforce(clip_cov_ratio=0.25, clip_cov_lb=1.0, clip_cov_ub=5.0)
    left_out, sums = gradient(clip_cov, ROWS, skewed())
    assert sums["left_out"] == 1
    assert torch.count_nonzero(left_out[0]) == 0
    torch.testing.assert_close(left_out[1:], plain[1:])


def test_kl_cov_pulls_the_chosen_token_back() -> None:
    plain, _ = gradient(Reinforce(), ROWS, skewed())
    pulled, _ = gradient(Reinforce(kl_cov_ratio=0.25, kl_cov_coef=0.7), ROWS, skewed())
    one_hot = torch.tensor([0.0, 1.0, 0.0, 0.0])
    towards = 0.7 * (one_hot - torch.softmax(torch.tensor([0.0, 4.0, 0.0, 0.0]), 0)) / 4 / 10
    torch.testing.assert_close(pulled[0] - plain[0], towards)  # it is likelier than when sampled
    torch.testing.assert_close(pulled[1:], plain[1:])


# -- a target for the entropy ----------------------------------------------------------------


def test_the_bonus_follows_the_entropy() -> None:
    algorithm = Reinforce(entropy_coef=0.01, target_entropy=0.5, entropy_coef_step=0.004)
    weights = []
    for update, entropy in enumerate([0.6, 0.4, 0.3, 0.4, 0.6, 0.6, 0.7, 0.9, 0.2], start=1):
        weights.append(algorithm.entropy_weight(update))
        algorithm.finish_update({"entropy": entropy})
    weights.append(algorithm.entropy_weight(10))
    # The coefficient: .01 .006 .010 .014 .018 .014 .010 .006 .002 .006; it acts only below the target.
    assert weights == pytest.approx([0.01, 0.0, 0.010, 0.014, 0.018, 0.0, 0.0, 0.0, 0.0, 0.006])


def test_the_state_of_the_bonus_is_restored() -> None:
    algorithm = Reinforce(target_entropy=0.5)
    assert algorithm.state_dict() == {"entropy_coef": 0.0, "entropy": None}
    algorithm.finish_update({"entropy": 0.1})
    algorithm.finish_update({"completion_tokens": 0.0})  # an update without a token says nothing
    again = Reinforce(target_entropy=0.5)
    again.load_state_dict(algorithm.state_dict())
    assert again.entropy_weight(2) == algorithm.entropy_weight(2) == 0.005
    again.load_state_dict({})  # a checkpoint from before the option was on
    assert again.entropy_weight(2) == 0.0
    assert Reinforce().state_dict() == {}
