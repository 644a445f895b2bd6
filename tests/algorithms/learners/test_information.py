"""The mutual information of position and answer, against policies of which it is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.algorithms.learners.conftest import MakeLearner
from tests.algorithms.learners.samples import make_samples
from tests.algorithms.policies import BigramPolicy
from tests.algorithms.test_reinforce import sample
from unstable_stream.algorithms import Reinforce, TrainingSample
from unstable_stream.algorithms.learners.rank import Rank
from unstable_stream.algorithms.learners.settings import LearnerSettings
from unstable_stream.algorithms.learners.training import Training

pytestmark = pytest.mark.longer


def information(table: torch.Tensor, samples: list[TrainingSample], limit: int | None = None) -> float:
    """The metric of a bigram policy: its first token depends on the prompt's last alone."""
    policy = BigramPolicy(len(table))
    with torch.no_grad():
        policy.table.weight.copy_(table)
    settings = LearnerSettings(
        batch_size=12, mini_batch_size=8, learning_rate=1e-3, max_generation_len=4, max_train_len=limit
    )
    training = Training(policy, Reinforce(), settings, Rank(), device=torch.device("cpu"), lower=False)
    result = training.update(samples, ["train"] * len(samples), 1, learning_rate_factor=1.0)
    return result.metrics["answer_information"]


def test_an_answer_that_names_its_position_tells_all_of_it() -> None:
    samples = [sample([at], [at], step_id=str(at)) for at in range(12)]
    assert information(50.0 * torch.eye(12), samples) == pytest.approx(math.log(12))


@pytest.mark.parametrize("limit", [None, 4])
def test_answers_drawn_alike_everywhere_tell_nothing_whatever_their_entropy(limit: int | None) -> None:
    """Also if prompts of different lengths leave different room for an answer."""
    row = torch.tensor(np.random.default_rng(0).normal(size=12), dtype=torch.float32)
    samples = [sample([1] * (at % 3) + [at], [3, (5 * at) % 12], step_id=str(at)) for at in range(12)]
    assert information(row.expand(12, 12), samples, limit) == pytest.approx(0.0, abs=1e-6)


def test_it_is_that_of_a_loop_over_pairs(make_learner: MakeLearner) -> None:
    """Of answers of several tokens, in a model that reads the whole prompt; not in every update."""
    learner = make_learner(batch_size=144, learning_rate=1e-12)
    samples = make_samples(60)
    training = learner.training
    metrics = [
        training.update(samples, ["train"] * 60, number, learning_rate_factor=1.0).metrics
        for number in (1, 2)
    ]
    assert ["answer_information" in each for each in metrics] == [True, False]
    positions = [*{each.prompt_token_ids.tobytes(): each for each in samples}.values()]
    chosen = positions[:: len(positions) // 12][:12]

    def logprob(shown: TrainingSample, said: TrainingSample) -> float:
        pair = replace(shown, completion_token_ids=said.completion_token_ids, logprobs=said.logprobs)
        with training.evaluating():
            return training.algorithm.answer_logprobs([pair]).item()

    expected = 0.0
    for said in chosen:
        mean = math.fsum(math.exp(logprob(shown, said)) for shown in chosen) / 12
        expected += (logprob(said, said) - math.log(mean)) / 12
    assert metrics[0]["answer_information"] == pytest.approx(expected, abs=1e-4)
