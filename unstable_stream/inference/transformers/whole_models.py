"""Decode with whole models that were trained from the base model, beside it in one batch.

Everything in a decoder but attention works token by token (see
:mod:`unstable_stream.inference.transformers.model`), so every layer that has weights is exchanged for one
that runs each span of the batch through the weights of the span's own model.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from unstable_stream.errors import EngineError
from unstable_stream.inference.engine import Adapter
from unstable_stream.log.stores.adapter_format import MODEL_WEIGHTS_FILE, weights_file


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start`` to ``stop`` of the batch belong to the model ``uid``; ``None``: the base model."""

    uid: str | None
    start: int
    stop: int


class SpannedLayer(nn.Module):
    """A layer of the base model, and the same layer of other models for their spans of tokens."""

    def __init__(self, base: nn.Module, spans: list[Span]) -> None:
        """Wrap ``base``; ``spans`` is shared by all layers and describes the batch at hand."""
        super().__init__()
        self.base = base
        self.spans = spans
        self.others: dict[str | None, nn.Module] = {}
        """By uid."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (1, tokens, …), span by span."""
        layers = [self.others.get(span.uid, self.base) for span in self.spans]
        if not layers or all(layer is layers[0] for layer in layers):
            whole: Tensor = layers[0](x) if layers else self.base(x)
            return whole
        parts = [layer(x[:, span.start : span.stop]) for layer, span in zip(layers, self.spans, strict=True)]
        return torch.cat(parts, dim=1)


def is_whole_model(adapter: Adapter) -> bool:
    """Whether the directory holds a model's weights, and not an adapter's."""
    return weights_file(Path(adapter.path)).name == MODEL_WEIGHTS_FILE


class WholeModels:
    """Exchanges the layers of a model when the first whole model is loaded, and loads them."""

    def __init__(self, model: nn.Module, *, spans: list[Span], head: nn.Module) -> None:
        """Look at ``model`` before its layers are wrapped otherwise, and exchange the output head alone."""
        self._model = model
        self._spans = spans
        self._leaves = {
            name: module
            for name, module in model.named_modules()
            if next(module.parameters(recurse=False), None) is not None
        }
        self._names: dict[int, list[str]] = {}
        """All names of a parameter by its identity: tied weights are one parameter, saved under one name."""
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(parameter), []).append(name)
        self._layers: dict[str, SpannedLayer] = {}
        self.head_spans: list[Span] = []
        """The spans of the states that are given to the output head."""
        self.head: Final = SpannedLayer(head, self.head_spans)
        self._exchange({id(head): self.head})

    def knows(self, uid: str | None) -> bool:
        """Whether the whole model ``uid`` is loaded."""
        return uid in self.head.others

    def load(self, adapter: Adapter) -> list[dict[str | None, Any]]:
        """Load a model; return the tables that hold its layers under its uid.

        Raises :class:`~unstable_stream.errors.EngineError`: the file is no model of the base model's shape.
        """
        weights = self._read(adapter)
        self._exchange_layers()
        tables: list[dict[str | None, Any]] = []
        for name, module in self._leaves.items():
            layer = copy.deepcopy(module)
            with torch.no_grad():
                for own, parameter in module.named_parameters(recurse=False):
                    saved = next(weights[each] for each in self._names[id(parameter)] if each in weights)
                    layer.get_parameter(own).copy_(saved)
            self._layers[name].others[adapter.uid] = layer
            tables.append(self._layers[name].others)
        return tables

    def _read(self, adapter: Adapter) -> dict[str, Tensor]:
        try:
            weights = safetensors.torch.load_file(Path(adapter.path, MODEL_WEIGHTS_FILE))
        except (OSError, safetensors.SafetensorError) as error:
            raise EngineError(
                f"model {adapter.uid!r} cannot be read from {adapter.path}: {error}; "
                f"expected {MODEL_WEIGHTS_FILE} as the learner saves it"
            ) from error
        for name, module in self._leaves.items():
            for parameter in module.parameters(recurse=False):
                names = self._names[id(parameter)]
                found = next((weights[each].shape for each in names if each in weights), None)
                if found != parameter.shape:
                    raise EngineError(
                        f"model {adapter.uid!r} at {adapter.path} has {_shape(found)} at {name!r}, the base "
                        f"model {_shape(parameter.shape)}; train it from this base model"
                    )
        return weights

    def _exchange_layers(self) -> None:
        """Wrap every layer that has weights, once: a model that no other ever joins stays as fast."""
        if self._layers:
            return
        head = self.head.base
        self._layers = {
            name: self.head if module is head else SpannedLayer(module, self._spans)
            for name, module in self._leaves.items()
        }
        self._exchange({id(layer.base): layer for layer in self._layers.values() if layer is not self.head})

    def _exchange(self, layers: Mapping[int, SpannedLayer]) -> None:
        for parent in list(self._model.modules()):
            for child, module in list(parent.named_children()):
                if id(module) in layers:
                    setattr(parent, child, layers[id(module)])


def _shape(shape: Sequence[int] | None) -> str:
    return "nothing" if shape is None else f"shape {list(shape)}"
