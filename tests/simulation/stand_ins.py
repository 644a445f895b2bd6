"""What stands in for the costly parts: an engine that draws legal-looking moves, weights that are a hash.

All the rest of engine, worker and learner is the real code, also the files of checkpoints.
"""

import asyncio
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.simulation.world import MARK, World
from unstable_stream.algorithms import BaseAlgo
from unstable_stream.algorithms.learners.checkpoint import CheckpointInfo
from unstable_stream.algorithms.learners.policy import Policy
from unstable_stream.algorithms.learners.settings import LearnerSettings, UpdateResult
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.learners.training import Training
from unstable_stream.algorithms.update_decisions import Admission, TrainingSample
from unstable_stream.errors import CheckpointError, EngineError
from unstable_stream.events import AdapterProbe
from unstable_stream.inference.engine import Completion, EngineStats, GenerationRequest
from unstable_stream.inference.tokenizer import FileTokenizer, load_tokenizer
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE

_FIRST_CELL = 24
"""The tiny player's token ``[0]``; those of the other cells follow."""


_load_once = functools.cache(load_tokenizer)


def tokenizer(model_path: str, template_variables: Mapping[str, Any]) -> FileTokenizer:
    """Load a tokenizer once for all simulated workers; the tiny player has no variables."""
    assert not template_variables
    return _load_once(model_path)


class RandomMoves:
    """An engine that draws from the world, so a game that is played again takes another course."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = 0

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return one cell, or now and then something that is none."""
        world = self._world
        self._asked += 1
        await asyncio.sleep(world.rng.random() * 0.5)
        if request.adapter is not None and not (Path(request.adapter.path) / WEIGHTS_FILE).is_file():
            raise AssertionError(f"the adapter of {request.adapter.uid} is gone: {request.adapter.path}")
        drawn = world.rng.random()
        if drawn < 0.005 and not world.calm:
            raise EngineError(f"prompt too long {MARK}")
        token = 5 if drawn < 0.05 else _FIRST_CELL + world.rng.randrange(9)
        cut = world.rng.random() < 0.1
        return Completion([token], [-world.rng.random()], "length" if cut else "stop")

    def stats(self) -> EngineStats:
        """Return how often it was asked."""
        return EngineStats(0, 0, 0.0, self._asked, self._asked)

    async def close(self) -> None:
        """Nothing to close."""


class PretendPolicy(Policy):
    """A single weight vector in place of a model."""

    def __init__(self, model_name: str, settings: LearnerSettings) -> None:
        self.model_name = model_name
        self._whole = False
        self._lora = settings.lora_cfg
        self.model = torch.nn.Linear(8, 1, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(self.model.weight)

    def weights(self) -> dict[str, torch.Tensor]:
        return {"weight": self.model.weight.detach().clone()}

    def load(self, weights: Mapping[str, torch.Tensor], *, origin: str) -> None:
        with torch.no_grad():
            self.model.weight.copy_(weights["weight"])

    def files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        return {"base_model_name_or_path": self.model_name}, {}


class PretendTraining(Training):
    """Holds what a checkpoint asks for."""

    def __init__(self, model: torch.nn.Module, algorithm: BaseAlgo, settings: LearnerSettings) -> None:
        self.algorithm = algorithm
        self.settings = settings
        self.optimizer = torch.optim.AdamW(model.parameters())
        self._networks, self._policy_groups = {}, 1


class PretendLearner(StandardLearner):
    """A learner whose weights are a hash of all batches so far: two histories never have equal weights."""

    world: World

    def __init__(
        self, model_name: str, settings: LearnerSettings, *, algorithm: BaseAlgo, ckpt_root: Path, **_: Any
    ) -> None:
        algorithm.max_train_len = settings.max_train_len  # as initialize() does, for admit()
        self.ckpt_root = Path(ckpt_root)
        self.policy = PretendPolicy(model_name, settings)
        self.training = PretendTraining(self.policy.model, algorithm, settings)
        self._step = self._samples_seen = 0
        self._broken = None

    def update(
        self,
        samples: Sequence[TrainingSample],
        update_number: int,
        admissions: Sequence[Admission] | None = None,
        *,
        learning_rate_factor: float = 1.0,
    ) -> UpdateResult:
        """Mix the ids and advantages of a batch into the weights."""
        assert update_number == self._step + 1, (update_number, self._step)
        assert admissions is not None
        weight: torch.Tensor = self.policy.model.weight
        digest = hashlib.blake2b(weight.detach().numpy().tobytes(), digest_size=16)
        kept = [s for s, decision in zip(samples, admissions, strict=True) if decision != "drop"]
        for sample in kept:
            digest.update(f"{sample.step_id} {sample.advantage}".encode())
        with torch.no_grad():
            weight.copy_(torch.tensor([[byte / 256 for byte in digest.digest()[:8]]], dtype=torch.float64))
        self._step = update_number
        self._samples_seen += len(kept)
        loss = weight.mean().item()
        return UpdateResult(update_number, loss, {"loss": loss})

    def save(self, **named: Any) -> CheckpointInfo:
        """Save as the real one does, unless the disk is full."""
        if self.world.disk_full("checkpoint"):
            raise CheckpointError(f"no space left {MARK}")
        return super().save(**named)

    def probe(self) -> AdapterProbe:
        """Return nothing to compare."""
        return AdapterProbe(dtype="float32", sequences=())

    def computed_with(self) -> dict[str, str]:
        """Return what decides on the last bits: the same everywhere."""
        return {"device": "cpu", "dtype": "float32", "learners": "1"}
