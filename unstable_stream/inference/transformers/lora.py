"""Apply LoRA adapters to a batch whose tokens are sorted by them (nothing is merged); keep whole models."""

import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from unstable_stream.errors import EngineError
from unstable_stream.inference.engine import Adapter
from unstable_stream.log.stores.adapter_format import (
    CONFIG_FILE,
    MODEL_WEIGHTS_FILE,
    REMEDY,
    WEIGHTS_FILE,
    adapter_scale,
    refused_fields,
    weights_file,
)


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens ``start`` to ``stop`` of the batch belong to the model ``uid``; ``None``: the base model."""

    uid: str | None
    start: int
    stop: int


class AdaptedLinear(nn.Module):
    """``base(x)`` plus its adapter's ``scale * B A x`` for each span of tokens (Hu et al. 2021, eq. 3)."""

    def __init__(self, base: nn.Linear | Conv1D, spans: list[Span]) -> None:
        """Wrap ``base``; ``spans`` is shared by all layers and describes the batch at hand."""
        super().__init__()
        self.base: nn.Module = base
        # GPT-2's Conv1D is a linear layer with its weight transposed.
        shape = base.weight.T.shape if isinstance(base, nn.Linear) else base.weight.shape
        self.features = (shape[0], shape[1])
        self.spans = spans
        self.deltas: dict[str | None, tuple[Tensor, Tensor]] = {}
        """By uid: A transposed, shape (in, rank), and B transposed times scale, shape (rank, out)."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., tokens, in) to (..., tokens, out); all leading axes are 1."""
        out: Tensor = self.base(x)
        if self.deltas:
            flat_x = x.reshape(-1, x.shape[-1])
            flat_out = out.view(-1, out.shape[-1])
            for span in self.spans:
                delta = self.deltas.get(span.uid)
                if delta is not None:
                    rows = slice(span.start, span.stop)
                    flat_out[rows].addmm_(flat_x[rows] @ delta[0], delta[1])
        return out


class AdapterTable:
    """The loaded adapters and whole models: at most ``max_loras``, the least recently used makes room."""

    def __init__(self, model: nn.Module, *, head: nn.Module, max_loras: int) -> None:
        """Wrap every linear layer of ``model``; no adapter adapts ``head``, the output head."""
        self.spans: list[Span] = []
        """The batch at hand. Every wrapped layer reads this very list."""
        self.whole: Final[dict[str | None, Any]] = {}
        """By uid: the parameters of a whole model, by their names in ``model``."""
        self._model = model
        self._names: dict[int, list[str]] = {}
        """The names in files of a parameter by its identity: tied weights are one, saved under one name."""
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(parameter), []).append(name)
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._max_loras = max_loras
        self._loaded: OrderedDict[str, list[dict[str | None, Any]]] = OrderedDict()
        """By uid: the tables of the layers that hold something under it."""
        self._paths: dict[str, str] = {}
        self._linears: dict[str, AdaptedLinear] = {}
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.Linear | Conv1D) and module is not head:
                wrapped = AdaptedLinear(module, self.spans)
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, wrapped)
                self._linears[name] = wrapped

    def make_ready(self, adapter: Adapter, in_use: set[str]) -> bool:
        """Load ``adapter`` if need be. ``False``: no room until one of the adapters ``in_use`` is done.

        Raises :class:`~unstable_stream.errors.EngineError`: the directory is missing, is no LoRA adapter of
        this model, or the uid stood for another directory before.
        """
        known = self._paths.get(adapter.uid, adapter.path)
        if known != adapter.path:
            raise EngineError(
                f"adapter {adapter.uid!r} was {known} and is now {adapter.path}; "
                "adapters are never reloaded in place: give each checkpoint a uid of its own"
            )
        if adapter.uid in self._loaded:
            self._loaded.move_to_end(adapter.uid)
            return True
        if len(self._loaded) >= self._max_loras:
            idle = next((uid for uid in self._loaded if uid not in in_use), None)
            if idle is None:
                return False
            self.unload(idle)
        whole = weights_file(Path(adapter.path)).name == MODEL_WEIGHTS_FILE
        self._loaded[adapter.uid] = self._load_whole(adapter) if whole else self._load(adapter)
        self._paths[adapter.uid] = adapter.path
        return True

    def unload(self, uid: str) -> None:
        """Take an adapter out of memory that no row of the batch uses."""
        for table in self._loaded.pop(uid):
            del table[uid]

    def loaded(self) -> list[str]:
        """Uids in memory, the least recently used first."""
        return list(self._loaded)

    def _load_whole(self, adapter: Adapter) -> list[dict[str | None, Any]]:
        try:
            weights = safetensors.torch.load_file(Path(adapter.path, MODEL_WEIGHTS_FILE))
        except (OSError, safetensors.SafetensorError) as error:
            raise EngineError(
                f"model {adapter.uid!r} cannot be read from {adapter.path}: {error}; "
                f"expected {MODEL_WEIGHTS_FILE} as the learner saves it"
            ) from error
        parameters = {}
        for name, parameter in self._model.named_parameters():
            names = self._names[id(parameter)]
            saved = next((weights[each] for each in names if each in weights), None)
            if saved is None or saved.shape != parameter.shape:
                raise EngineError(
                    f"model {adapter.uid!r} at {adapter.path} has {_shape(saved)} at {names[0]!r}, the base "
                    f"model {_shape(parameter)}; train it from this base model"
                )
            parameters[name] = saved.to(self._device, self._dtype)
        self.whole[adapter.uid] = parameters
        return [self.whole]

    def _load(self, adapter: Adapter) -> list[dict[str | None, Any]]:
        deltas = _read_deltas(adapter)
        for name, (down, up) in deltas.items():
            linear = self._linears.get(name)
            if linear is None:
                raise EngineError(
                    f"adapter {adapter.uid!r} at {adapter.path} adapts {name!r}, which is no linear layer "
                    "of this model (the output head cannot be adapted); train the adapter on this base model"
                )
            found = (down.shape[1], up.shape[0])
            expected = linear.features
            if found != expected:
                raise EngineError(
                    f"adapter {adapter.uid!r} at {adapter.path} maps {found[0]} to {found[1]} features "
                    f"at {name!r}, the model {expected[0]} to {expected[1]}; train it on this base model"
                )
        tables: list[dict[str | None, Any]] = []
        for name, (down, up) in deltas.items():
            deltas_here = self._linears[name].deltas
            deltas_here[adapter.uid] = (
                down.to(self._device, self._dtype).t().contiguous(),
                up.to(self._device, self._dtype).t().contiguous(),
            )
            tables.append(deltas_here)
        return tables


_TENSOR_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")


def _read_deltas(adapter: Adapter) -> dict[str, tuple[Tensor, Tensor]]:
    """Return (A, scale * B) by module name, in float32."""
    directory = Path(adapter.path)
    try:
        config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
        tensors = safetensors.torch.load_file(directory / WEIGHTS_FILE)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise EngineError(
            f"adapter {adapter.uid!r} cannot be read from {adapter.path}: {error}; "
            "expected adapter_config.json and adapter_model.safetensors as PEFT saves them"
        ) from error
    unsupported = refused_fields(config)
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _TENSOR_NAME.fullmatch(name)
        if match is None:
            unsupported.append(name)
        else:
            sides.setdefault(match["module"], {})[match["side"]] = tensor.float()
    incomplete = [name for name, pair in sides.items() if len(pair) != 2]
    if unsupported or incomplete or not sides:
        raise EngineError(
            f"adapter {adapter.uid!r} at {adapter.path} is no plain LoRA adapter of linear layers "
            f"(found: {', '.join(unsupported + incomplete) or 'no tensors'}); {REMEDY}"
        )
    return {
        name: (pair["A"], pair["B"] * adapter_scale(config, name, rank=pair["A"].shape[0]))
        for name, pair in sides.items()
    }


def _shape(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"shape {list(tensor.shape)}"
