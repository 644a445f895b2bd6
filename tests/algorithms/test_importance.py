"""Ratios, bounds, trust regions and means, each against the objective as its paper writes it."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.algorithms.policies import BigramPolicy
from tests.algorithms.test_reinforce import bound, sample
from unstable_stream.algorithms import Reinforce, TrainingSample
from unstable_stream.errors import LearnerError

_LIMIT = 10
"""``max_generation_len`` of :func:`bound`."""
_LENGTHS = (1, 3, 2)


def _samples(generator: np.random.Generator) -> list[TrainingSample]:
    return [
        sample(
            [0],
            generator.integers(0, 4, length).tolist(),
            advantage=float(generator.normal()),
            logprobs=generator.uniform(-3, -0.5, length).tolist(),
            step_id=str(number),
        )
        for number, length in enumerate(_LENGTHS)
    ]


def _logprobs(table: torch.Tensor, one: TrainingSample) -> torch.Tensor:
    tokens = torch.tensor([*one.prompt_token_ids[-1:], *one.completion_token_ids])
    return torch.log_softmax(table[tokens[:-1]], -1).gather(-1, tokens[1:, None]).squeeze(-1)


def _naive(
    table: torch.Tensor, old: torch.Tensor, samples: list[TrainingSample], given: dict[str, Any]
) -> torch.Tensor:
    """The loss in a loop over answers, whose gradient PyTorch finds by itself: the ratio is not detached."""
    total = sum(_LENGTHS)
    loss = torch.zeros(())
    for one in samples:
        now, before = _logprobs(table, one), _logprobs(old, one).detach()
        recorded, length = torch.tensor(one.logprobs), len(one.logprobs)
        around = before if given["trust_region"] == "update" else recorded
        correction, ratio = before - recorded, now - around
        if given["ratio_of"] != "token":
            mean = length if given["ratio_of"] == "answer_mean" else 1
            correction, ratio = correction.sum() / mean, ratio.sum() / mean
        correction, ratio = correction.exp(), ratio.exp()
        behaviour = correction if given["trust_region"] == "update" else ratio.detach()
        low, high = 1 - given["clip_low"], 1 + given["clip_high"]
        advantage = one.advantage
        objective = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
        if given["trust_region"] == "update":
            objective = objective * correction
        objective = objective * ((behaviour >= given["mask_below"]) & (behaviour <= given["mask_above"]))
        # The derivative of an answer's mean ratio has one over the length in it; the loss asks per token.
        objective = objective * (length if given["ratio_of"] == "answer_mean" else 1)
        divisor = {"constant": _LIMIT, "answer": length, "token": total / len(samples)}
        loss = loss - objective.sum() / divisor[given["loss_average"]] / len(samples)
    return loss


@settings(max_examples=60)
@given(
    ratio_of=st.sampled_from(["token", "answer", "answer_mean"]),
    trust_region=st.sampled_from(["behaviour", "update"]),
    loss_average=st.sampled_from(["constant", "answer", "token"]),
    seed=st.integers(0, 10**6),
)
def test_the_gradient_is_that_of_a_naive_loop(
    ratio_of: str, trust_region: str, loss_average: str, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    given: dict[str, Any] = {"ratio_of": ratio_of, "trust_region": trust_region, "loss_average": loss_average}
    bounds: dict[str, Any] = {"clip_low": 0.4, "clip_high": 0.6, "mask_below": 0.3, "mask_above": 4.0}
    policy, samples = BigramPolicy(), _samples(generator)
    algorithm = bound(Reinforce(is_clip=None, **given, **bounds), policy)
    old = torch.tensor(generator.normal(size=(4, 4)), dtype=torch.float32)
    new = old + torch.tensor(generator.normal(size=(4, 4)), dtype=torch.float32) / 4
    with torch.no_grad():
        policy.table.weight.copy_(old)
    algorithm.begin_update(samples, [[2, 0], [1]])
    with torch.no_grad():
        policy.table.weight.copy_(new)
    algorithm.mean_length = sum(_LENGTHS) / len(_LENGTHS)
    for part in (samples[:2], samples[2:]):
        algorithm.update(algorithm.prepare_batch(part), scale=1 / len(samples), update=1)
    table = new.clone().requires_grad_()
    _naive(table, old, samples, {**given, **bounds}).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(policy.table.weight.grad, table.grad, rtol=1e-4, atol=1e-6)


def test_a_weight_is_bounded_whatever_the_ratios_are() -> None:
    """Both factors of the decoupled objective are large: the weight is still at most ``is_clip``."""
    policy = BigramPolicy()
    algorithm = bound(Reinforce(is_clip=2.0, clip_low=0.2, trust_region="update"), policy)
    one = sample([0], [1], advantage=-1.0, logprobs=[math.log(1 / 4) - 3.0])
    algorithm.begin_update([one], [[0]])
    with torch.no_grad():
        policy.table.weight[0, 1] = 1.0
    sums = algorithm.update(algorithm.prepare_batch([one]), scale=1.0, update=1)
    logprob = 1.0 - math.log(3 + math.e)
    assert sums["loss"].item() == pytest.approx(2.0 * logprob / _LIMIT)
    assert sums["truncated"].item() == 1


def test_how_many_tokens_are_masked_is_a_metric() -> None:
    algorithm = bound(Reinforce(mask_below=0.5, mask_above=5.0), BigramPolicy())
    fourth = math.log(1 / 4)
    one = sample([0], [1, 2, 3], logprobs=[fourth, fourth + math.log(3), fourth - math.log(8)])
    totals = algorithm.update(algorithm.prepare_batch([one]), scale=1.0, update=1)
    metrics = algorithm.summarize({name: value.item() for name, value in totals.items()})
    assert metrics["mask_fraction"] == pytest.approx(2 / 3)
    assert totals["loss"].item() == pytest.approx(-fourth / _LIMIT)


def test_a_trust_region_needs_bounds_and_a_look_at_the_update() -> None:
    algorithm = bound(Reinforce(trust_region="update", clip_low=0.2), BigramPolicy())
    with pytest.raises(LearnerError, match="call begin_update"):
        algorithm.update(algorithm.prepare_batch([sample([0], [1])]), scale=1.0, update=1)
    with pytest.raises(LearnerError, match="needs clip_low or clip_high"):
        Reinforce(trust_region="update")
