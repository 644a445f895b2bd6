"""An update in micro-batches against a slow obvious loop: one sample at a time, full logits, plain Python."""

from collections.abc import Sequence
from itertools import chain, combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.algorithms.learners.conftest import Learner, MakeLearner
from tests.algorithms.learners.samples import make_sample, make_samples
from tests.tiers import chosen
from unstable_stream.algorithms import A2C, PPO, Reinforce, TrainingSample
from unstable_stream.algorithms.learners.cutting import micro_batches, optimizer_chunks

pytestmark = pytest.mark.longer

NEVER_CLIP = 1e9


def slow_gradients(
    learner: Learner,
    samples: list[TrainingSample],
    *,
    is_clip: float = 2.0,
    entropy: float = 0.0,
    left_padding: int = 0,
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the formula in ``reinforce.py``, one sample and one token at a time."""
    learner.policy.model.zero_grad()
    total = 0.0
    for sample in samples:
        prompt, completion = sample.prompt_token_ids.tolist(), sample.completion_token_ids.tolist()
        tokens = torch.tensor([[0] * left_padding + prompt + completion])
        mask = torch.ones_like(tokens)
        mask[:, :left_padding] = 0
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = learner.policy.model(tokens, attention_mask=mask, position_ids=positions).logits[0]
        loss = torch.zeros(())
        for index, token in enumerate(completion):
            place = left_padding + len(prompt) + index - 1
            distribution = torch.log_softmax(logits[place] / sample.temperature, dim=-1)
            ratio = (distribution[token].detach() - float(sample.logprobs[index])).exp().clamp(max=is_clip)
            token_entropy = -(distribution.exp() * distribution).sum()
            loss = loss - ratio * sample.advantage * distribution[token] - entropy * token_entropy
        loss = loss / 8 / len(samples)  # max_generation_len, samples
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, gradients(learner)


def gradients(learner: Learner) -> dict[str, Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in learner.policy.model.named_parameters()
        if parameter.grad is not None
    }


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in expected.values())
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-6, msg=name)


def warmed(make_learner: MakeLearner, **overrides: Any) -> Learner:
    """A learner whose adapter is not the initial one, so that every LoRA matrix has a gradient."""
    learner = make_learner(grad_clip=NEVER_CLIP, **overrides)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in learner.policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05, generator=generator)
    return learner


@pytest.mark.parametrize("left_padding", [0, 5])
def test_packed_gradient_equals_the_loop(make_learner: MakeLearner, left_padding: int) -> None:
    learner = warmed(make_learner, algorithm=Reinforce(entropy_coef=0.05))
    samples = [*make_samples(17), make_sample("long-prompt", 40, 1), make_sample("long-completion", 1, 8)]
    loss, expected = slow_gradients(learner, samples, entropy=0.05, left_padding=left_padding)
    result = learner.update(samples, 1)
    assert result.loss == pytest.approx(loss, rel=1e-4)
    assert_same(gradients(learner), expected)
    assert result.metrics["samples"] == len(samples)
    assert result.metrics["padding_fraction"] < 0.2


@pytest.mark.parametrize(
    "overrides",
    [
        {"mini_batch_size": 1},
        {"mini_batch_size": 64, "mini_batch_tokens": 50},
        {"mini_batch_size": 64, "gradient_checkpointing": True},
        {"mini_batch_size": 64, "activation_checkpointing": True},
    ],
)
def test_how_the_batch_is_cut_does_not_matter(make_learner: MakeLearner, overrides: dict[str, Any]) -> None:
    samples = make_samples(12)
    whole = warmed(make_learner, mini_batch_size=64)
    expected = whole.update(samples, 1)
    cut = warmed(make_learner, **overrides)
    found = cut.update(samples, 1)
    assert_same(gradients(cut), gradients(whole))
    assert found.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-4)
    assert found.metrics["entropy"] == pytest.approx(expected.metrics["entropy"], rel=1e-4)


COVARIANCE: dict[str, dict[str, Any]] = {
    "Clip-Cov": {"clip_cov_ratio": 0.1, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0, "clip_high": 3.0},
    "KL-Cov": {"kl_cov_ratio": 0.2, "kl_cov_coef": 0.5},
}


@chosen(
    "method, kind", [("Clip-Cov", Reinforce), ("KL-Cov", A2C)], [("Clip-Cov", A2C), ("KL-Cov", Reinforce)]
)
def test_tokens_are_chosen_among_a_whole_optimizer_step(
    make_learner: MakeLearner, method: str, kind: type[Reinforce]
) -> None:
    """However the batch is cut, the same tokens are chosen, and no more than the share asked for."""
    samples = make_samples(12)
    whole, rows, tokens = (
        warmed(make_learner, algorithm=kind(**COVARIANCE[method]), optimizer_steps_per_update=2, **cut)
        for cut in ({"mini_batch_size": 64}, {"mini_batch_size": 1}, {"mini_batch_tokens": 50})
    )
    metrics = whole.update(samples, 1).metrics
    for cut in (rows, tokens):
        found = cut.update(samples, 1).metrics
        assert_same(gradients(cut), gradients(whole))
        assert found["grad_norm"] == pytest.approx(metrics["grad_norm"], rel=1e-4)
        for name in ("clip_cov_fraction", "kl_cov_fraction"):
            assert found.get(name) == metrics.get(name)
    steps = optimizer_chunks(12, 2, seed=11, update=1)
    counts = [sum(len(samples[index].completion_token_ids) for index in step) for step in steps]
    share = COVARIANCE[method].get("clip_cov_ratio", 0.2)
    chosen = sum(int(share * count) for count in counts)
    name = "clip_cov_fraction" if method == "Clip-Cov" else "kl_cov_fraction"
    assert metrics[name] == pytest.approx(chosen / sum(counts))


def test_the_choice_of_tokens_draws_no_random_numbers_of_training(make_learner: MakeLearner) -> None:
    """With dropout: the pass that measures takes none from the pass that trains, and is without dropout."""
    lora = {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.3}
    plain, chosen = (
        warmed(make_learner, algorithm=Reinforce(**each), lora_cfg=lora)
        for each in (dict[str, Any](), {"kl_cov_ratio": 1e-9})
    )
    plain.update(make_samples(6), 1)
    chosen.update(make_samples(6), 1)
    assert_same(gradients(chosen), gradients(plain))


@pytest.mark.parametrize("algorithm", [Reinforce, PPO, A2C])
def test_a_budget_of_tokens_bounds_each_forward_pass_but_for_a_longer_row(
    make_learner: MakeLearner, algorithm: type[Reinforce]
) -> None:
    """Ten rows of 6 to 15 tokens, and one of 48, with room for 30: the gradient is that of whole rows."""
    samples = [make_sample(f"s{index}", 5 + index, 1, seed=index, advantage=-1.0) for index in range(10)]
    samples.append(make_sample("long", 40, 8, seed=99))
    rows = warmed(make_learner, algorithm=algorithm(epochs=1), mini_batch_size=64)
    tokens = warmed(make_learner, algorithm=algorithm(epochs=1), mini_batch_size=64, mini_batch_tokens=30)
    largest = [learner.update(samples, 1).metrics["micro_batch_tokens_max"] for learner in (rows, tokens)]
    assert largest == [150, 48]  # the ten together, with padding; and the long one alone
    assert_same(gradients(tokens), gradients(rows))


def test_max_train_len_trains_on_the_first_tokens(make_learner: MakeLearner) -> None:
    learner = warmed(make_learner, max_train_len=10)
    whole = make_sample("cut", 6, 8)
    first = TrainingSample(
        "first", whole.prompt_token_ids, whole.completion_token_ids[:4], whole.logprobs[:4], whole.advantage
    )
    _, expected = slow_gradients(learner, [first])
    result = learner.update([whole, make_sample("too-long", 10, 2)], 1)
    assert_same(gradients(learner), expected)  # the mean is over the one sample that was kept
    assert (result.metrics["samples"], result.metrics["samples_dropped"]) == (1, 1)
    assert result.metrics["completion_tokens"] == 4


def test_masked_turns_count_in_the_mean_and_dropped_ones_do_not(make_learner: MakeLearner) -> None:
    samples = [*make_samples(3), make_sample("cut-off", 4, 8, truncated=True)]
    plain = warmed(make_learner)
    plain.update(samples[:3], 1)
    masked = warmed(make_learner, algorithm=Reinforce(truncated_turns="mask"))
    result = masked.update(samples, 1)
    assert (result.metrics["samples"], result.metrics["samples_dropped"]) == (4, 0)
    assert_same(gradients(masked), {name: value * 3 / 4 for name, value in gradients(plain).items()})
    dropping = warmed(make_learner, algorithm=Reinforce(truncated_turns="drop"))
    result = dropping.update(samples, 1)
    assert (result.metrics["samples"], result.metrics["samples_dropped"]) == (3, 1)
    assert_same(gradients(dropping), gradients(plain))


def cost_of(batches: Sequence[Sequence[int]], lengths: Sequence[int], overhead: int) -> int:
    return sum(overhead + len(batch) * max(lengths[index] for index in batch) for batch in batches)


def fits(batch: Sequence[int], lengths: Sequence[int], max_rows: int, max_tokens: int) -> bool:
    tokens = len(batch) * max(lengths[index] for index in batch)
    return len(batch) == 1 or (len(batch) <= max_rows and tokens <= max_tokens)


@given(
    lengths=st.lists(st.integers(1, 60), max_size=9),
    max_rows=st.integers(1, 5),
    max_tokens=st.integers(1, 150),
    overhead=st.integers(0, 80),
)
def test_no_way_to_cut_sorted_rows_costs_less(
    lengths: list[int], max_rows: int, max_tokens: int, overhead: int
) -> None:
    batches = micro_batches(lengths, max_rows=max_rows, max_tokens=max_tokens, overhead_tokens=overhead)
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    assert [
        index for batch in sorted(batches, key=lambda batch: order.index(batch[0])) for index in batch
    ] == order
    tokens = [len(batch) * lengths[batch[0]] for batch in batches]
    assert tokens == sorted(tokens, reverse=True)
    assert all(fits(batch, lengths, max_rows, max_tokens) for batch in batches)
    between = range(1, len(order))
    for cuts in chain.from_iterable(combinations(between, count) for count in range(len(order))):
        parts = [order[start:end] for start, end in pairwise((0, *cuts, len(order)))]
        if all(fits(part, lengths, max_rows, max_tokens) for part in parts):
            assert cost_of(batches, lengths, overhead) <= cost_of(parts, lengths, overhead)


def test_optimizer_chunks_are_a_seeded_partition() -> None:
    chunks = optimizer_chunks(11, 3, seed=1, update=4)
    assert sorted(index for chunk in chunks for index in chunk) == list(range(11))
    assert sorted(len(chunk) for chunk in chunks) == [3, 4, 4]
    assert chunks == optimizer_chunks(11, 3, seed=1, update=4)
    assert chunks != optimizer_chunks(11, 3, seed=1, update=5)
    assert optimizer_chunks(2, 5, seed=1, update=1) in ([[0], [1]], [[1], [0]])
    assert optimizer_chunks(3, 1, seed=1, update=1) == [[0, 1, 2]]
