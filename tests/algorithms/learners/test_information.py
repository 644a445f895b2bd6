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


def information(table: torch.Tensor, samples: list[TrainingSample]) -> float:
    """The metric of a bigram policy: its first token depends on the prompt's last alone."""
    policy = BigramPolicy(len(table))
    with torch.no_grad():
        policy.table.weight.copy_(table)
    settings = LearnerSettings(batch_size=8, mini_batch_size=8, learning_rate=1e-3, max_generation_len=4)
    training = Training(policy, Reinforce(), settings, Rank(), device=torch.device("cpu"), lower=False)
    result = training.update(samples, ["train"] * len(samples), 1, learning_rate_factor=1.0)
    return result.metrics["answer_information"]


def test_an_answer_that_names_its_position_tells_all_of_it() -> None:
    table = 50.0 * torch.eye(8)
    samples = [sample([at], [at], step_id=str(at)) for at in range(8)]
    assert information(table, samples) == pytest.approx(math.log(8))


def test_answers_drawn_alike_everywhere_tell_nothing_whatever_their_entropy() -> None:
    row = torch.tensor(np.random.default_rng(0).normal(size=8), dtype=torch.float32)
    samples = [sample([at], [(3 * at) % 8], step_id=str(at)) for at in range(8)]
    assert information(row.expand(8, 8), samples) == pytest.approx(0.0, abs=1e-6)


def test_it_is_that_of_a_loop_over_pairs(make_learner: MakeLearner) -> None:
    """Of answers of several tokens, in a model that reads the whole prompt."""
    learner = make_learner(batch_size=64, learning_rate=1e-12)
    samples = make_samples(64)
    training = learner.training
    found = training.update(samples, ["train"] * 64, 1, learning_rate_factor=1.0).metrics
    positions = [*{each.prompt_token_ids.tobytes(): each for each in samples}.values()]
    one, other = positions[0], positions[len(positions) // 2]

    def logprob(shown: TrainingSample, said: TrainingSample) -> float:
        pair = replace(shown, completion_token_ids=said.completion_token_ids, logprobs=said.logprobs)
        with training.evaluating():
            return training.algorithm.answer_logprobs([pair]).item()

    expected = 0.0
    for said in (one, other):
        mean = (math.exp(logprob(one, said)) + math.exp(logprob(other, said))) / 2
        expected += (logprob(said, said) - math.log(mean)) / 2
    assert found["answer_information"] == pytest.approx(expected, abs=1e-4)
