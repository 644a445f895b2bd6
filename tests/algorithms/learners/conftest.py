"""A tiny model, batches of mixed lengths and a learner factory for all learner tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from tests.inference.conftest import tiny_model as tiny_model  # a fixture
from unstable_stream.algorithms import Reinforce
from unstable_stream.algorithms.learners.lora import LoraSettings
from unstable_stream.algorithms.learners.settings import LearnerSettings
from unstable_stream.algorithms.learners.standard_learner import StandardLearner

Learner: TypeAlias = StandardLearner
MakeLearner: TypeAlias = Callable[..., Learner]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def make_learner(tiny_model: Path, tmp_path: Path) -> MakeLearner:
    """Build a learner with small settings; keyword arguments override them."""

    def make(**overrides: Any) -> Learner:
        arguments: dict[str, Any] = {
            "model_name": str(tiny_model),
            "algorithm": Reinforce(),
            "batch_size": 64,
            "mini_batch_size": 4,
            "learning_rate": 1e-2,
            "max_generation_len": 8,
            "ckpt_root": tmp_path / "checkpoints",
            "lora_cfg": {"lora_rank": 4, "lora_alpha": 8},
            "seed": 11,
        } | overrides
        if not isinstance(arguments["lora_cfg"], LoraSettings):
            arguments["lora_cfg"] = LoraSettings(**arguments["lora_cfg"])
        settings = {
            name: arguments.pop(name) for name in LearnerSettings.__dataclass_fields__ if name in arguments
        }
        return StandardLearner(settings=LearnerSettings(**settings), **arguments)

    return make
