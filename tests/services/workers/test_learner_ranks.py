"""Several learners in processes of their own train as one would, and end together."""

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import still_runs
from tests.services.workers.test_learner_service import BATCH, config, steps
from unstable_stream.algorithms import Reinforce, TokenBatch
from unstable_stream.algorithms.learners.checkpoint import load_checkpoint
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.update_decisions import TrainingSample
from unstable_stream.errors import ConfigError, LearnerError
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.placement import Machine, Share, place
from unstable_stream.services.workers.checkpoint_home import DirectoryHome
from unstable_stream.services.workers.learner_core import (
    LearnerGroup,
    build_learners,
    build_training_algorithm,
    configure,
)

pytestmark = pytest.mark.slow  # each starts processes that load torch and a model
DEADLINE_S = 60.0
REINFORCE = {"type": "reinforce", "entropy_coef": 0.01}
A2C = {"type": "a2c", "critic_learning_rate": 0.05, "epochs": 2}
KL_COV = {"type": "reinforce", "kl_cov_ratio": 0.3, "clip_cov_ratio": 0.3, "clip_cov_lb": -9.0}


def settings(num_learners: int, **sections: Any) -> RunConfig:
    made = config(num_learners=num_learners, parameters="all", learning_rate=1e-3, dtype="float32")
    return RunConfig.model_validate({**made.model_dump(), **sections})


def build(made: RunConfig, directory: Path) -> Any:
    algorithm = build_training_algorithm(made)
    home = DirectoryHome(directory)
    return build_learners(made, algorithm, home, directory, resolve_model("tiny-player"), Share("learner"))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[..., LearnerGroup]]:
    """Start learners, which are ended after the test."""
    started: list[LearnerGroup] = []

    def start(directory: str = "group", count: int = 2, **sections: Any) -> LearnerGroup:
        started.append(build(settings(count, **sections), tmp_path / directory))
        assert isinstance(started[-1], LearnerGroup)
        return started[-1]

    yield start
    for each in started:
        each.close()


def batches() -> list[list[TrainingSample]]:
    made = [TrainingSample.from_step(step, step.reward) for step in steps()]
    return [made[start : start + BATCH] for start in range(0, 3 * BATCH, BATCH)]


def train(learner: Any, numbers: Sequence[int]) -> list[dict[str, float]]:
    return [learner.update(batches()[number - 1], number).metrics for number in numbers]


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(REINFORCE, marks=pytest.mark.long, id="reinforce"),  # of which the others have all
        pytest.param(A2C, id="a2c"),
        pytest.param(KL_COV, id="covariance"),
    ],
)
def test_two_learners_make_the_weights_of_one(
    group: Callable[..., LearnerGroup], tmp_path: Path, algorithm: dict[str, Any]
) -> None:
    alone = build(settings(1, algorithm=algorithm), tmp_path / "alone")
    assert isinstance(alone, StandardLearner)
    expected = train(alone, [1, 2, 3])
    both = group(algorithm=algorithm)
    found = train(both, [1, 2, 3])
    for mine, theirs in zip(found, expected, strict=True):
        for name in ("loss", "grad_norm", "entropy", "is_ratio_mean", "completion_tokens", "samples"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
        for name in ("clip_cov_fraction", "kl_cov_fraction"):
            assert mine.get(name) == theirs.get(name) != 0.0, name
    saved, reference = load_checkpoint(both.save().path), load_checkpoint(alone.save().path)
    torch.testing.assert_close(saved.weights, reference.weights, rtol=1e-3, atol=2e-4)
    torch.testing.assert_close(saved.networks, reference.networks, rtol=1e-3, atol=2e-4)


@pytest.mark.long
def test_more_learners_than_rows_still_agree(group: Callable[..., LearnerGroup], tmp_path: Path) -> None:
    alone = build(settings(1), tmp_path / "alone")
    expected = alone.update(batches()[0][:2], 1).metrics["grad_norm"]
    three = group(count=3)
    assert three.update(batches()[0][:2], 1).metrics["grad_norm"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
def test_all_resume_from_one_checkpoint(group: Callable[..., LearnerGroup]) -> None:
    straight = group(algorithm=A2C)
    train(straight, [1])
    middle = straight.save()
    expected = train(straight, [2, 3])
    straight.close()
    resumed = group("resumed", algorithm=A2C)
    resumed.load(middle.path, middle.sha256)
    assert (resumed.step, resumed.samples_seen) == (1, BATCH)
    assert train(resumed, [2, 3]) == expected


@pytest.mark.long
def test_all_ranks_change_their_settings(group: Callable[..., LearnerGroup], tmp_path: Path) -> None:
    pair, alone = group(), build(settings(1), tmp_path / "alone")
    for learner, count in ((pair, 2), (alone, 1)):
        train(learner, [1])
        configure(learner, settings(count, algorithm=A2C))
    (found,), (expected,) = train(pair, [2]), train(alone, [2])
    assert found["value_loss"] == pytest.approx(expected["value_loss"], rel=1e-3)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)


class Picky(Reinforce):
    """Refuses a sample that only one rank gets."""

    def update(self, batch: TokenBatch, *, scale: float, update: int) -> Mapping[str, torch.Tensor]:
        if bool((batch.row_rewards == 7.0).any()):
            raise LearnerError("a sample I do not like")
        return super().update(batch, scale=scale, update=update)


def test_an_error_of_one_learner_ends_all_at_once(
    group: Callable[..., LearnerGroup], capfd: pytest.CaptureFixture[str]
) -> None:
    pair = group(algorithm={"type": f"{__name__}:Picky"})
    # The shortest rows are in the last of two micro-batches, which is that of rank 1.
    rows = sorted(batches()[0], key=lambda each: len(each.prompt_token_ids) + len(each.completion_token_ids))
    samples = [dataclasses.replace(each, advantage=0.5) for each in rows]
    samples[0] = dataclasses.replace(samples[0], advantage=7.0)
    with pytest.raises(LearnerError, match="learner rank 1 ended during update 1, status 1"):
        pair.update(samples, 1)
    assert "learner rank 1: a sample I do not like" in capfd.readouterr().err


def test_a_learner_that_cannot_start_says_why(tmp_path: Path) -> None:
    made = settings(2)
    algorithm, model = build_training_algorithm(made), str(tmp_path / "no-such-model")
    with pytest.raises(LearnerError, match="no-such-model"):
        build_learners(made, algorithm, DirectoryHome(tmp_path), tmp_path, model, Share("learner"))


def leader(directory: str) -> None:
    """Run in a new process: start two learners, print the other's process, and train until killed."""
    pair = build(settings(2), Path(directory))
    print(*pair.process_ids, flush=True)
    for number in range(1, 10**6):
        pair.update(batches()[0], number)


@pytest.mark.long
async def test_without_the_first_the_others_end(tmp_path: Path) -> None:
    code = f"from {__name__} import leader; leader({str(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        other = int(await asyncio.to_thread(process.stdout.readline))
        process.kill()
    deadline = time.monotonic() + DEADLINE_S
    while still_runs(other):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_learners=2 learners needs a whole one"):
        config(num_learners=2, num_gpus=0.5)
    with pytest.raises(ValueError, match='backend="inline" runs everything in one process'):
        settings(2, backend="inline")
    with pytest.raises(ConfigError, match="num_learners=2 need a GPU each on one machine, and there"):
        place(config(num_learners=2), [Machine(gpus=1)])


def test_each_learner_has_a_gpu_of_one_machine() -> None:
    plan = place(config(num_learners=2), [Machine(gpus=1), Machine(gpus=2)])
    assert (plan.learner.num_gpus, plan.learner.machine, plan.learner.gpus) == (2.0, 1, (0, 1))
    assert plan.engines[0].machine == 0
    on_cpu = place(config(num_learners=2, num_gpus=0), [Machine(gpus=1)])
    assert on_cpu.learner.num_gpus == 0
