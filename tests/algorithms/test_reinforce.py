"""REINFORCE worked out by hand on a bigram table: which tokens count, with what weight."""

import math

import numpy as np
import pytest
import torch

from tests.algorithms.policies import BigramPolicy, with_row
from tests.builders import made
from unstable_stream.algorithms import Reinforce, TrainingSample
from unstable_stream.errors import LearnerError
from unstable_stream.events import Step, pack_floats, pack_tokens

UNIFORM = math.log(1 / 4)


def sample(
    prompt: list[int],
    completion: list[int],
    advantage: float = 1.0,
    logprobs: list[float] | None = None,
    temperature: float = 1.0,
    truncated: bool = False,
    step_id: str = "step",
) -> TrainingSample:
    return TrainingSample(
        step_id=step_id,
        prompt_token_ids=np.array(prompt, dtype=np.int32),
        completion_token_ids=np.array(completion, dtype=np.int32),
        logprobs=np.array([UNIFORM] * len(completion) if logprobs is None else logprobs, dtype=np.float32),
        advantage=advantage,
        temperature=temperature,
        truncated=truncated,
    )


def bound(algorithm: Reinforce, policy: BigramPolicy, max_train_len: int | None = None) -> Reinforce:
    algorithm.initialize(
        policy, device=torch.device("cpu"), max_generation_len=10, max_train_len=max_train_len
    )
    return algorithm


def gradient(
    algorithm: Reinforce, samples: list[TrainingSample], policy: BigramPolicy | None = None
) -> tuple[torch.Tensor, dict[str, float]]:
    """Gradient of the table and the summed statistics, all samples in one micro-batch."""
    policy = policy or BigramPolicy()
    bound(algorithm, policy)
    algorithm.begin_update(samples, [range(len(samples))])
    if algorithm.measures:
        with torch.no_grad():
            measured = algorithm.measure(samples)
        algorithm.begin_step(samples, measured, np.random.default_rng(0))
    sums = algorithm.update(algorithm.prepare_batch(samples), scale=1 / len(samples), update=1)
    assert policy.table.weight.grad is not None
    return policy.table.weight.grad, {name: value.item() for name, value in sums.items()}


def test_two_tokens_by_hand() -> None:
    """Tokens 2 then 3 after prompt 0, 1, uniform policy: each pushes its row by (one-hot - 1/4) A / L."""
    grad, sums = gradient(Reinforce(), [sample([0, 1], [2, 3], advantage=2.0)])
    expected = torch.zeros(4, 4)
    expected[1] = -2.0 / 10 * (torch.tensor([0.0, 0, 1, 0]) - 0.25)
    expected[2] = -2.0 / 10 * (torch.tensor([0.0, 0, 0, 1]) - 0.25)
    torch.testing.assert_close(grad, expected)
    assert sums["loss"] == pytest.approx(-2.0 * 2 * UNIFORM / 10)
    assert sums["tokens"] == 2
    assert sums["entropy"] == pytest.approx(2 * math.log(4))
    assert sums["kl"] == pytest.approx(0.0)


def test_importance_ratio_is_truncated_and_carries_no_gradient() -> None:
    plain, _ = gradient(Reinforce(is_clip=None), [sample([0], [1], logprobs=[UNIFORM - math.log(8)])])
    half, sums = gradient(Reinforce(is_clip=2.0), [sample([0], [1], logprobs=[UNIFORM + math.log(2)])])
    torch.testing.assert_close(half, plain * 0.5)
    assert sums["truncated"] == 0
    capped, sums = gradient(Reinforce(is_clip=2.0), [sample([0], [1], logprobs=[UNIFORM - math.log(8)])])
    torch.testing.assert_close(capped, plain * 2.0)
    assert sums["truncated"] == 1
    assert sums["max_ratio"] == pytest.approx(8.0)
    assert sums["kl"] == pytest.approx(8 - 1 - math.log(8), rel=1e-5)
    _, extreme = gradient(Reinforce(is_clip=2.0), [sample([0], [1], logprobs=[-500.0])])
    assert math.isfinite(extreme["max_ratio"])
    assert extreme["loss"] == pytest.approx(-2.0 * UNIFORM / 10)


def test_the_recorded_temperature_is_applied() -> None:
    """The ancestor sampled at 0.6 and trained at 1."""
    logits = torch.tensor([1.0, 0.0, -1.0, 0.5])
    policy = with_row(BigramPolicy(), 0, logits)
    expected = torch.log_softmax(logits / 0.6, 0)[2].item()
    on_policy = sample([0], [2], logprobs=[expected], temperature=0.6)
    grad, sums = gradient(Reinforce(), [on_policy], policy)
    assert sums["max_ratio"] == pytest.approx(1.0, abs=1e-5)
    one_hot = torch.tensor([0.0, 0.0, 1.0, 0.0])
    torch.testing.assert_close(grad[0], -(one_hot - torch.softmax(logits / 0.6, 0)) / 0.6 / 10)


def test_entropy_bonus_pulls_towards_uniform_and_decays() -> None:
    algorithm = Reinforce(entropy_coef=0.1, entropy_decay_updates=4)
    assert [algorithm.entropy_weight(update) for update in (1, 2, 5, 9)] == pytest.approx(
        [0.1, 0.075, 0.0, 0.0]
    )
    policy = with_row(BigramPolicy(), 0, [2.0, 0.0, 0.0, 0.0])
    grad, sums = gradient(algorithm, [sample([0], [0], advantage=0.0)], policy)
    logits = torch.tensor([2.0, 0.0, 0.0, 0.0], requires_grad=True)
    distribution = torch.log_softmax(logits, 0)
    entropy = -(distribution.exp() * distribution).sum()
    (-0.1 * entropy / 10).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(grad[0], logits.grad)
    assert grad[0, 0] > 0  # descending lowers the peak
    assert sums["entropy"] == pytest.approx(entropy.item())


def test_max_train_len_cuts_the_completion() -> None:
    policy, algorithm = BigramPolicy(), Reinforce()
    bound(algorithm, policy, max_train_len=4)
    cut = sample([0, 1], [2, 3, 2, 1])
    batch = algorithm.prepare_batch([cut, sample([1], [0])])
    assert batch.targets.tolist() == [2, 3, 0]
    assert batch.input_ids.tolist() == [[0, 1, 2], [1, 0, 0]]
    assert batch.positions.tolist() == [1, 2, 3]
    assert batch.rows.tolist() == [0, 0, 1]
    assert algorithm.admit(sample([0, 1, 2, 3], [3])) == "drop"


def test_capped_logits_are_known() -> None:
    policy = with_row(BigramPolicy(soft_cap=3.0), 0, [9.0, 0.0, 0.0, 0.0])
    _, sums = gradient(Reinforce(), [sample([0], [0], logprobs=[0.0])], policy)
    capped = torch.tensor([3 * math.tanh(3.0), 0.0, 0.0, 0.0])
    assert sums["loss"] == pytest.approx(
        -torch.log_softmax(capped, 0)[0].item() * sums["max_ratio"] / 10, rel=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_unknown_scalings_are_refused_and_roundings_are_none(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    capped, odd = BigramPolicy(soft_cap=30.0).to(dtype), BigramPolicy(hidden_scale=1.1).to(dtype)
    with torch.no_grad():
        capped.table.weight.normal_(std=30.0)  # logits of up to 30, where bfloat16 has steps of 0.125
        odd.table.weight.normal_(std=30.0)
    bound(Reinforce(), capped)
    with pytest.raises(LearnerError, match="changes its logits"):
        bound(Reinforce(), odd)


def test_summaries_are_means() -> None:
    algorithm = Reinforce()
    _, sums = gradient(algorithm, [sample([0], [1, 2], advantage=3.0), sample([0], [1], advantage=-1.0)])
    metrics = algorithm.summarize(sums)
    assert metrics["completion_tokens"] == 3
    assert metrics["completion_length"] == 1.5
    assert metrics["advantage_mean"] == 1.0
    assert metrics["advantage_std"] == 2.0
    assert metrics["is_ratio_mean"] == pytest.approx(1.0)
    assert metrics["entropy"] == pytest.approx(math.log(4))
    assert algorithm.summarize({}) == {"completion_tokens": 0.0}


def test_tokens_come_from_the_step_and_are_never_made_again() -> None:
    """The ancestor found the prompt's end by tokenising again; the step's bytes are all there is here."""
    step = made(
        Step,
        prompt_token_ids=pack_tokens([3, 1]),
        completion_token_ids=pack_tokens([2, 0]),
        logprobs=pack_floats([-0.25, -1.5]),
        truncated=True,
        temperature=0.7,
    )
    found = TrainingSample.from_step(step, advantage=0.5)
    batch = bound(Reinforce(), BigramPolicy()).prepare_batch([found])
    assert batch.input_ids.tolist() == [[3, 1, 2]]
    assert batch.targets.tolist() == [2, 0]
    assert batch.behaviour_logprobs.tolist() == [-0.25, -1.5]
    assert batch.temperatures.tolist() == pytest.approx([0.7, 0.7])
    assert batch.advantages.tolist() == [0.5, 0.5]
    assert found.truncated


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": []}, "empty prompt"),
        ({"logprobs": [0.0]}, "2 completion tokens but 1 log-probabilities"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"advantage": math.nan}, "advantage nan"),
        ({"logprobs": [0.0, -math.inf]}, "not finite"),
    ],
)
def test_samples_that_cannot_be_trained_on_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(LearnerError, match=rf"step bad .*{message}"):
        sample(**{"prompt": [0], "completion": [1, 2], "step_id": "bad"} | arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"is_clip": 0.0},
        {"entropy_coef": -0.1},
        {"entropy_decay_updates": 0},
        {"truncated_turns": "keep"},
        {"clip_cov_lb": 6.0},
        {"unknown": 1},
    ],
)
def test_impossible_settings_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(LearnerError, match=next(iter(arguments))):
        Reinforce(**arguments)  # type: ignore[arg-type]
