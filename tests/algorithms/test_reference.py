"""The reference policy: how it follows, and the divergence from it against a naive loop."""

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from tests.algorithms.learners.conftest import MakeLearner
from tests.algorithms.learners.conftest import make_learner as make_learner  # fixtures
from tests.algorithms.learners.conftest import tiny_model as tiny_model
from tests.algorithms.learners.samples import make_samples
from tests.algorithms.policies import BigramPolicy, with_row
from tests.algorithms.test_reinforce import bound, sample
from tests.algorithms.test_scoring import VOCABULARY, policy
from unstable_stream.algorithms import PPO, Reinforce, TrainingSample
from unstable_stream.algorithms.reference import ReferencePolicy

TURNS = [
    sample([3, 1], [4, 1, 5], advantage=1.0, logprobs=[-3.0, -2.0, -4.0], temperature=0.7),
    sample([3, 9], [2], advantage=-1.0, logprobs=[-2.5]),
    sample([2], [6, 5], advantage=0.5, logprobs=[-3.5, -3.0], temperature=1.5),
]


def naive_loss(model: Any, other: Any, turns: list[TrainingSample], coef: float) -> torch.Tensor:
    """The mean over the turns, token by token; ``L`` is 10."""
    loss = torch.zeros(())
    for turn in turns:
        prompt, answer = turn.prompt_token_ids.tolist(), turn.completion_token_ids.tolist()
        tokens = torch.tensor([[*prompt, *answer]])
        rows, past = ((each(input_ids=tokens).logits[0] / turn.temperature) for each in (model, other))
        logprobs, divergences = [], []
        for place, token in enumerate(answer, start=len(prompt) - 1):
            ours, theirs = rows[place].log_softmax(0), past[place].log_softmax(0).detach()
            logprobs.append(ours[token])
            divergences.append(
                sum(ours[each].exp() * (ours[each] - theirs[each]) for each in range(VOCABULARY))
            )
        for place, (logprob, divergence) in enumerate(zip(logprobs, divergences, strict=True)):
            weight = min((logprob - turn.logprobs[place]).exp().item(), 2.0)
            later = sum(each.item() for each in divergences[place + 1 :])
            loss = loss - weight * (turn.advantage - coef * later) * logprob / 10 + coef * divergence / 10
    return loss / len(turns)


@pytest.mark.parametrize("chunk", [1, 1000])
@pytest.mark.parametrize("trained", ["all", "decoder"])
def test_the_loss_has_the_gradient_of_a_naive_loop(
    trained: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unstable_stream.algorithms.scoring._CHUNK_ELEMENTS", chunk * VOCABULARY)
    model: Any = policy(LlamaConfig)
    if trained == "decoder":
        model.get_output_embeddings().requires_grad_(False)
    past = copy.deepcopy(model)
    algorithm = bound(Reinforce(kl_coef=0.7, reference="past"), model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(naive_loss(model, past, TURNS, 0.7), weights)
    batch = algorithm.prepare_batch(TURNS)
    sums = algorithm.update(batch, scale=1 / len(TURNS), update=1)
    assert sums["reference_kl"] > 0.1
    for weight, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-3, atol=1e-5)
    assert model.training


@pytest.mark.parametrize(
    ("settings", "ages"),
    [
        ({"reference": "past", "reference_every": 2}, [0, 2, 2, 4, 4]),
        ({"reference": "past", "reference_every": 0}, [0, 0, 0, 0, 0]),
        ({"reference": "average", "reference_every": 2}, [0.5, 1.25, 2.125, 3.0625, 4.03125]),
    ],
)
def test_it_follows_the_policy(settings: dict[str, Any], ages: list[float]) -> None:
    """After update ``n`` the policy's row has the logits ``n``."""
    model = BigramPolicy()
    reference = bound(Reinforce(kl_coef=1.0, **settings), model).reference
    assert reference is not None
    for update, expected in enumerate(ages, start=1):
        with_row(model, 0, [float(update)] * 4)
        reference.follow()
        with reference.in_place():
            assert model.table.weight[0].tolist() == [expected] * 4
        assert model.table.weight[0].tolist() == [update] * 4


@pytest.mark.longer
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_policy_has_its_own_weights_again(make_learner: MakeLearner, dtype: str) -> None:
    """Also where autocast keeps copies of weights in bfloat16. With the reference's weights it were 0."""
    algorithm = PPO(kl_coef=0.1, reference="past", reference_every=2, epochs=2)
    learner = make_learner(parameters="all", dtype=dtype, algorithm=algorithm)
    found = [learner.update(make_samples(8), number).metrics["reference_kl"] for number in range(1, 5)]
    assert min(found) > 0.1
    assert found[1] > 2 * found[0]
    assert found[2] < found[1] / 2  # renewed after the second update


def test_a_smaller_number_renews_one_that_is_older() -> None:
    """As after a resumption with another ``reference_every``."""
    model = BigramPolicy()
    older = ReferencePolicy(model, every=40, average=False)
    for _ in range(25):
        older.follow()
    resumed = ReferencePolicy(model, every=10, average=False)
    resumed.load_state_dict(older.state_dict())
    with_row(model, 0, [1.0, 0.0, 0.0, 0.0])
    resumed.follow()
    assert torch.equal(resumed.state_dict()["weights"][0], model.table.weight)
    assert resumed.state_dict()["age"] == 0
