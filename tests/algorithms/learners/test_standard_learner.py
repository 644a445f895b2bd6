"""Updates in turn, the learning rate, batches without trainable tokens, and stopping before damage."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from tests.algorithms.learners.conftest import Learner, MakeLearner
from tests.algorithms.learners.samples import make_sample, make_samples
from unstable_stream.algorithms import BaseAlgo, Reinforce, TokenBatch
from unstable_stream.algorithms.learners.lora import adapter_weights
from unstable_stream.algorithms.learners.settings import LrSchedule
from unstable_stream.errors import LearnerError

pytestmark = pytest.mark.longer


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in adapter_weights(learner.policy.model).items()}


def unchanged(learner: Learner, before: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in weights(learner).items())


def test_n_iterations_are_n_updates(make_learner: MakeLearner) -> None:
    """The ancestor counted each step twice and stopped an update early."""
    learner = make_learner()
    results = [learner.update(make_samples(4, seed=number), number) for number in range(1, 6)]
    assert [result.update for result in results] == [1, 2, 3, 4, 5]
    assert learner.step == 5
    assert learner.samples_seen == 20
    for wrong in (5, 7):
        with pytest.raises(LearnerError, match=f"update {wrong} is out of turn; expected 6"):
            learner.update(make_samples(4), wrong)
    assert learner.step == 5


@pytest.mark.parametrize("setting", ["mask", "drop"])
def test_all_truncated_batch_is_an_update_without_a_step(make_learner: MakeLearner, setting: str) -> None:
    learner = make_learner(algorithm=Reinforce(truncated_turns=setting), weight_decay=0.1)
    learner.update(make_samples(4), 1)  # so that momentum would move weights
    before = weights(learner)
    samples = [dataclasses.replace(sample, truncated=True) for sample in make_samples(4)]
    result = learner.update(samples, 2)
    assert unchanged(learner, before)
    assert result.loss == 0.0
    assert result.metrics["optimizer_steps"] == 0
    assert result.metrics["completion_tokens"] == 0
    assert result.metrics["padding_fraction"] == 0
    assert result.metrics["samples"] + result.metrics["samples_dropped"] == 4
    assert learner.step == 2
    learner.update(make_samples(4), 3)


def test_same_seed_same_weights_whatever_the_global_generator(make_learner: MakeLearner) -> None:
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        learner = make_learner(
            lora_cfg={"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.2}, optimizer_steps_per_update=2
        )
        state = torch.random.get_rng_state()
        for number in (1, 2):
            learner.update(make_samples(8), number)
        assert torch.equal(torch.random.get_rng_state(), state)
        found.append(weights(learner))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    other = make_learner(seed=12)
    assert not unchanged(other, found[0])


def test_padding_is_counted_over_all_micro_batches(make_learner: MakeLearner) -> None:
    learner = make_learner(mini_batch_size=2, optimizer_steps_per_update=2)
    samples = [make_sample(f"s{prompt}", prompt, 2) for prompt in (8, 8, 8, 8)]
    assert learner.update(samples, 1).metrics["padding_fraction"] == 0.0
    learner = make_learner(mini_batch_size=2)
    samples = [make_sample(f"s{prompt}", prompt, 2) for prompt in (8, 4, 1, 1)]
    assert learner.update(samples, 1).metrics["padding_fraction"] == pytest.approx(4 / 26)


class Poisoned(BaseAlgo):
    """Makes the loss of one sample infinite, in one update."""

    def update(self, batch: TokenBatch, *, scale: float, update: int) -> dict[str, torch.Tensor]:
        logprobs, _ = self.score(batch)
        loss = -(batch.advantages * logprobs).sum() * scale
        if update == 2 and bool((batch.row_advantages == 7.0).any()):
            loss = loss * math.inf
        loss.backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.detach()}


def test_a_loss_that_is_not_finite_stops_before_the_step(make_learner: MakeLearner) -> None:
    learner = make_learner(algorithm=Poisoned(), mini_batch_size=1)
    samples = [*make_samples(5), make_sample("culprit", 3, 2, advantage=7.0)]
    learner.update(samples, 1)
    saved = learner.save()
    before = weights(learner)
    with pytest.raises(LearnerError, match=r"update 2: .* among steps culprit\."):
        learner.update(samples, 2)
    assert unchanged(learner, before)
    assert learner.step == 1
    with pytest.raises(LearnerError, match="needs a checkpoint loaded"):
        learner.update(make_samples(5), 2)
    with pytest.raises(LearnerError, match="needs a checkpoint loaded"):
        learner.save()
    learner.load(saved.path, saved.sha256)
    assert learner.update(make_samples(5), 2).update == 2


@pytest.mark.parametrize("count", [0, 65])
def test_batches_of_the_wrong_size_are_refused(make_learner: MakeLearner, count: int) -> None:
    with pytest.raises(LearnerError, match=f"got {count} samples; expected 1 to batch_size = 64"):
        make_learner().update([make_sample("x", 2, 2)] * count, 1)


def test_the_second_factor_of_an_adapter_may_learn_faster(make_learner: MakeLearner) -> None:
    """Adam's first step is the rate itself wherever there is a gradient; of A there is none while B is 0."""
    lora = {"lora_rank": 4, "lora_alpha": 8, "loraplus_lr_ratio": 3.0}
    learner = make_learner(lora_cfg=lora, learning_rate=1e-2)
    before = weights(learner)
    learner.update(make_samples(8), 1)
    steps = {name: (tensor - before[name]).abs().median() for name, tensor in weights(learner).items()}
    assert all(
        step == pytest.approx(3e-2 if ".lora_B" in name else 0.0, rel=1e-3) for name, step in steps.items()
    )


def test_learning_rate_schedule() -> None:
    linear = LrSchedule(type="linear", final_fraction=0.05, total=110)
    assert [linear.factor(update) for update in (1, 110, 500)] == pytest.approx([1.0, 0.05, 0.05])
    assert linear.factor(55) == pytest.approx(1 - 0.95 * 54 / 109)
    assert LrSchedule().factor(10**6) == 1.0
    warm = LrSchedule(warmup=4)
    assert [warm.factor(update) for update in (1, 2, 4, 5)] == [0.25, 0.5, 1.0, 1.0]
    cosine = LrSchedule(type="cosine", final_fraction=0.2, total=101)
    assert [cosine.factor(update) for update in (1, 51, 101, 500)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert cosine.factor(26) == pytest.approx(0.6 + 0.4 * math.cos(math.pi / 4))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"lora_cfg": {"target_modules": ("nothing_like_it",)}}, "target_modules"),
        ({"lora_cfg": {"last_layers": 3}}, "has 2 decoder layers"),
        ({"initial_lora_path": "/nowhere"}, "initial_lora_path"),
    ],
)
def test_impossible_settings_are_refused(
    make_learner: MakeLearner, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(LearnerError, match=message):
        make_learner(**overrides)


def test_a_base_model_that_is_random_in_training_is_refused(
    make_learner: MakeLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noisy(torch.nn.Dropout):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__(p=0.5)

    monkeypatch.setattr("transformers.models.qwen3.modeling_qwen3.Qwen3RMSNorm", Noisy)
    with pytest.raises(LearnerError, match="other logits in training mode"):
        make_learner()


def test_divergence_from_the_base_model_is_measured_now_and_then(make_learner: MakeLearner) -> None:
    """And measuring changes nothing: dropout draws the same numbers as without."""
    settings = {"lora_cfg": {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.2}}
    learner, unmeasured = make_learner(**settings), make_learner(**settings)
    unmeasured.algorithm._adapter_layers = []
    found = {}
    for number in range(1, 6):
        found[number] = learner.update(make_samples(20, seed=number), number).metrics.get("kl_to_base")
        assert "kl_to_base" not in unmeasured.update(make_samples(20, seed=number), number).metrics
    assert found[1] == pytest.approx(0.0, abs=1e-6)  # a new adapter changes nothing
    assert found[2] is found[3] is found[4] is None
    assert found[5] is not None
    assert found[5] > 1e-3
    assert unchanged(learner, weights(unmeasured))


def test_a_learner_in_bfloat16_trains_a_float32_adapter_to_nearly_the_same(
    make_learner: MakeLearner, tmp_path: Path
) -> None:
    samples = make_samples(12)
    full = make_learner().update(samples, 1)
    half_learner = make_learner(dtype="bfloat16", ckpt_root=tmp_path / "half")
    parameters = dict(half_learner.policy.model.named_parameters())
    assert {value.dtype for name, value in parameters.items() if ".lora_" in name} == {torch.float32}
    assert {value.dtype for name, value in parameters.items() if ".lora_" not in name} == {torch.bfloat16}
    half = half_learner.update(samples, 1)
    assert half.metrics["entropy"] == pytest.approx(full.metrics["entropy"], rel=1e-2)
    assert half.metrics["grad_norm"] == pytest.approx(full.metrics["grad_norm"], rel=0.1)
    assert half.metrics["entropy"] != full.metrics["entropy"]

    checkpoint = half_learner.save()
    resumed = make_learner(dtype="bfloat16", ckpt_root=tmp_path / "half")
    resumed.load(checkpoint.path, checkpoint.sha256)
    later = make_samples(12, seed=1)
    assert resumed.update(later, 2).metrics == half_learner.update(later, 2).metrics, "bit for bit"
