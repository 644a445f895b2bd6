"""Adapters of a real model as the learner writes them, and the learner's log-probabilities under them."""

import json
import math
from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from unstable_stream.algorithms.learners.lora import (
    LoraSettings,
    adapter_config,
    adapter_weights,
    build_policy,
    load_adapter_weights,
)
from unstable_stream.algorithms.scoring import CompletionScorer
from unstable_stream.inference.engine import Adapter

_RANK = 16
_EFFECT = 0.65
"""Standard deviation of B times the root of the number of its columns in the whole model."""


class LearnersView:
    """The learner's policy: one model in float32, whose adapter is exchanged."""

    def __init__(self, model: Path) -> None:
        self._model = str(model)
        self._settings = LoraSettings(lora_rank=_RANK, lora_alpha=2 * _RANK)
        self._policy = build_policy(
            self._model, self._settings, device=torch.device("cpu"), base_dtype=torch.float32, seed=0
        ).eval()
        self._scorer = CompletionScorer(self._policy)
        self._fresh = adapter_weights(self._policy)
        self._layers = int(self._policy.config.num_hidden_layers)

    def write(
        self, path: Path, seed: int, *, rank: int = _RANK, layers: Collection[int] | None = None
    ) -> Adapter:
        """Write a random adapter of plain effect; its uid is the directory's name.

        Args:
            path: the directory.
            seed: different for each adapter.
            rank: ``_RANK`` at the most; alpha is twice the rank.
            layers: decoder layers that are adapted; ``None``: all.
        """
        chosen = {f".layers.{layer}." for layer in (range(self._layers) if layers is None else layers)}
        deviation = _EFFECT / math.sqrt(rank * len(chosen))
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for name, tensor in self._fresh.items():
            if not any(layer in name for layer in chosen):
                continue
            if ".lora_A." in name:
                weights[name] = torch.randn(rank, tensor.shape[1], generator=generator) * tensor.std()
            else:
                weights[name] = torch.randn(tensor.shape[0], rank, generator=generator) * deviation
        path.mkdir(parents=True)
        settings = LoraSettings(lora_rank=rank, lora_alpha=2 * rank)
        (path / "adapter_config.json").write_text(
            json.dumps(adapter_config(self._policy, self._model, settings))
        )
        save_file(weights, path / "adapter_model.safetensors")
        return Adapter(path.name, str(path))

    @torch.no_grad()
    def logprobs(
        self, adapter: Adapter | None, prompt: Sequence[int], completion: Sequence[int]
    ) -> list[float]:
        """Return the log-probability of each token of ``completion`` at temperature 1."""
        self._put_on(adapter)
        positions = torch.arange(len(prompt) - 1, len(prompt) + len(completion) - 1)
        states = self._scorer.states(torch.tensor([[*prompt, *completion]]), positions)
        found, _ = self._scorer.score(states, torch.tensor(completion), torch.ones(len(completion)))
        logprobs: list[float] = found.tolist()
        return logprobs

    def _put_on(self, adapter: Adapter | None) -> None:
        """Exchange the adapter. One of a smaller rank or of fewer layers is filled up with zeros."""
        weights = {name: torch.zeros_like(tensor) for name, tensor in self._fresh.items()}
        if adapter is not None:
            for name, tensor in load_file(Path(adapter.path) / "adapter_model.safetensors").items():
                weights[name][: tensor.shape[0], : tensor.shape[1]] = tensor
        load_adapter_weights(self._policy, weights, origin="" if adapter is None else adapter.path)
