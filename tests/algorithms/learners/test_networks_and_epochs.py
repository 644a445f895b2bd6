"""Algorithms with networks of their own, and several passes over a batch."""

import dataclasses
from typing import Any

import pytest
import torch

from tests.algorithms.learners.conftest import Learner, MakeLearner
from tests.algorithms.learners.samples import make_samples
from tests.algorithms.learners.test_standard_learner import unchanged, weights
from unstable_stream.algorithms import A2C, PPO, Reinforce, TrainingSample
from unstable_stream.algorithms.learners.settings import LrSchedule
from unstable_stream.errors import LearnerError

pytestmark = pytest.mark.longer

SETTINGS: dict[str, Any] = {
    "lora_cfg": {"lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.1},
    "lr_schedule": LrSchedule(type="linear", final_fraction=0.1, total=6),
    "optimizer_steps_per_update": 2,
    "weight_decay": 0.01,
}


def games(update: int) -> list[TrainingSample]:
    """Three trajectories of four turns."""
    return [
        dataclasses.replace(sample, trajectory_id=f"t{number % 3}", turn_index=number // 3)
        for number, sample in enumerate(make_samples(12, seed=update))
    ]


def train(learner: Learner, first: int, last: int) -> list[dict[str, float]]:
    return [learner.update(games(number), number).metrics for number in range(first, last + 1)]


def critic_of(learner: Learner) -> torch.nn.Linear:
    assert isinstance(learner.algorithm, A2C)
    return learner.algorithm.critic


def test_a_resumed_critic_continues_the_same_curve_bit_for_bit(make_learner: MakeLearner) -> None:
    straight = make_learner(algorithm=A2C(epochs=2), **SETTINGS)
    train(straight, 1, 3)
    middle = straight.save()
    expected = train(straight, 4, 6)
    resumed = make_learner(algorithm=A2C(epochs=2), **SETTINGS)
    resumed.load(middle.path, middle.sha256)
    assert train(resumed, 4, 6) == expected
    assert unchanged(resumed, weights(straight))
    assert torch.equal(critic_of(resumed).weight, critic_of(straight).weight)
    assert critic_of(straight).bias.item() != 0.0


def test_a_run_may_change_between_algorithms_with_a_critic_and_without(make_learner: MakeLearner) -> None:
    plain = make_learner()
    train(plain, 1, 1)
    without = plain.save()
    with_critic = make_learner(algorithm=A2C())
    with_critic.load(without.path)
    assert critic_of(with_critic).weight.abs().sum() == 0  # it begins anew
    train(with_critic, 2, 2)
    made = with_critic.save()
    again = make_learner(algorithm=Reinforce(kl_coef=1.0, reference="past"))
    again.load(made.path)
    assert unchanged(again, weights(with_critic))
    assert train(again, 3, 3)[0]["reference_kl"] == pytest.approx(0, abs=1e-6)  # it begins as the policy
    assert train(again, 4, 4)[0]["reference_kl"] > 1e-6


class DrawnCritic(A2C):
    """A critic with PyTorch's own initialisation, and any number of outputs."""

    outputs = 1

    def initialize(self, model: torch.nn.Module, *, device: torch.device, **limits: Any) -> None:
        super().initialize(model, device=device, **limits)
        self.critic = torch.nn.Linear(self.hidden_size, self.outputs)


class OtherCritic(DrawnCritic):
    outputs = 2


def test_networks_of_another_shape_are_refused(make_learner: MakeLearner) -> None:
    learner = make_learner(algorithm=A2C())
    saved = learner.save()
    with pytest.raises(LearnerError, match=r"holds the networks critic\.bias, critic\.weight; the alg"):
        make_learner(algorithm=OtherCritic()).load(saved.path)


def test_a_critic_learns_the_returns_and_leaves_the_policy_its_gradient(make_learner: MakeLearner) -> None:
    """The same rewards again and again: the critic's error falls to a fraction, at its own learning rate."""
    learner = make_learner(algorithm=A2C(critic_learning_rate=0.1), learning_rate=1e-6)
    samples = [dataclasses.replace(sample, advantage=2.0) for sample in games(1)]
    first, *_, last = [learner.update(samples, number).metrics for number in range(1, 41)]
    assert first["value_loss"] == pytest.approx(2.0)
    assert last["value_loss"] < 0.02
    assert abs(last["advantage_mean"]) < 0.25
    assert last["value_mean"] == pytest.approx(2.0, abs=0.2)


def test_a_large_error_of_the_critic_does_not_shorten_the_policys_step(make_learner: MakeLearner) -> None:
    learner = make_learner(algorithm=A2C(gae_lambda=1.0), grad_clip=1e-2)
    huge = [dataclasses.replace(sample, advantage=1000.0) for sample in games(1)]
    learner.update(huge, 1)
    policy = [p.grad.square().sum() for p in learner.policy.model.parameters() if p.grad is not None]
    assert torch.stack(policy).sum().sqrt().item() == pytest.approx(1e-2, rel=1e-2)


def test_the_schedule_moves_the_critics_rate_too(make_learner: MakeLearner) -> None:
    learner = make_learner(
        algorithm=A2C(critic_learning_rate=0.5),
        lr_schedule=LrSchedule(type="linear", final_fraction=0.5, total=3),
    )
    train(learner, 1, 2)
    assert [group["lr"] for group in learner.training.optimizer.param_groups] == pytest.approx(
        [0.75e-2, 0.375]
    )


@pytest.mark.parametrize("steps", [1, 2])
def test_every_pass_sees_the_whole_batch(make_learner: MakeLearner, steps: int) -> None:
    learner = make_learner(algorithm=PPO(), optimizer_steps_per_update=steps)
    (metrics,) = train(learner, 1, 1)
    assert metrics["optimizer_steps"] == 4 * steps
    assert metrics["samples"] == 12
    assert metrics["completion_tokens"] == sum(len(each.completion_token_ids) for each in games(1))
    assert 0 < metrics["clip_fraction"] < 1


def test_a_network_that_is_drawn_depends_on_the_seed_alone(make_learner: MakeLearner) -> None:
    found = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        found.append(critic_of(make_learner(algorithm=DrawnCritic())).weight.clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], critic_of(make_learner(algorithm=DrawnCritic(), seed=12)).weight)


def test_a_critic_that_is_not_finite_is_named(make_learner: MakeLearner) -> None:
    learner = make_learner(algorithm=A2C())
    with torch.no_grad():
        critic_of(learner).bias.fill_(1e30)
    with pytest.raises(LearnerError, match=r"gradient norm .*, inf of critic"):
        learner.update(games(1), 1)
