"""Check a LoRA adapter, or the settings of one, by files alone, before an engine reads the weights."""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from unstable_stream.errors import ConfigError, EngineError
from unstable_stream.inference.engine import Adapter
from unstable_stream.log.stores.adapter_format import (
    CONFIG_FILE,
    REMEDY,
    WEIGHTS_FILE,
    refused_fields,
    weights_file,
)

_PREFIX = "base_model.model."
_HEADS_AND_EMBEDDINGS: Final = frozenset(
    {"embed_in", "embed_out", "embed_tokens", "lm_head", "word_embeddings", "wpe", "wte"}
)
"""Last parts of the names that the models of transformers give them."""


def heads_and_embeddings(modules: Iterable[str]) -> list[str]:
    """Return those of ``modules`` that name an output head or an embedding.

    No engine adapts them: the transformers engine adapts linear layers below the head, and vLLM leaves a
    head's adapter out of the log-probabilities of prompts (vLLM #51594).
    """
    return [module for module in modules if module.rpartition(".")[2] in _HEADS_AND_EMBEDDINGS]


def weight_shapes(model_path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a model saved as safetensors; empty if there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(model_path.glob("*.safetensors")):
        shapes |= _header(file)
    return shapes


def check_target_modules(model_path: Path, targets: Sequence[str]) -> None:
    """Check that each target names a layer of the model: PEFT trains the others and says nothing.

    A model that is not saved as safetensors is not checked.

    Raises:
        ConfigError: one names none, or a file of the model cannot be read.
    """
    try:
        shapes = weight_shapes(model_path)
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError(f"model {model_path} cannot be read: {error}; download or save it again") from error
    layers = {
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if name.endswith(".weight") and len(shape) == 2
    }
    if layers:
        refuse_unknown_targets(model_path, targets, layers.difference(heads_and_embeddings(layers)))


def refuse_unknown_targets(model_path: Path | str, targets: Sequence[str], layers: Iterable[str]) -> None:
    """Raise :class:`~unstable_stream.errors.ConfigError` if a target is the last part of no layer's name."""
    names = [f".{layer}" for layer in layers]
    if unknown := [target for target in targets if not any(name.endswith(f".{target}") for name in names)]:
        known = sorted({name.rpartition(".")[2] for name in names})
        raise ConfigError(
            f"lora.target_modules names {', '.join(unknown)}, which {model_path} does not have: set "
            f"lora.target_modules to some of its layers {', '.join(known)}"
        )


def check_adapter_files(adapter: Adapter, base: Mapping[str, tuple[int, ...]], max_rank: int) -> None:
    """Check that the adapter is there, a plain LoRA of rank ``max_rank`` or less, and fits ``base``'s shapes.

    vLLM copies weights into slots of the base model's size and accepts smaller ones without a word, so an
    adapter of another model would generate nonsense. For heads and embeddings see
    :func:`heads_and_embeddings`.

    Raises:
        EngineError: One of these does not hold.
    """
    directory = Path(adapter.path)
    where = f"adapter {adapter.uid!r} at {adapter.path}"
    try:
        config: dict[str, Any] = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
        shapes = _header(directory / WEIGHTS_FILE)
    except (OSError, ValueError, struct.error) as error:
        raise EngineError(
            f"{where} cannot be read: {error}; "
            "expected adapter_config.json and adapter_model.safetensors as PEFT saves them"
        ) from error
    if refused := refused_fields(config):
        raise EngineError(f"{where} is no plain LoRA adapter (found: {', '.join(refused)}); {REMEDY}")
    rank = max([config.get("r", 0), *(config.get("rank_pattern") or {}).values()])
    if rank > max_rank:
        raise EngineError(f"{where} has rank {rank}, the engine takes up to {max_rank}; raise lora_rank")
    for name, shape in shapes.items():
        module, _, side = name.removeprefix(_PREFIX).rpartition(".lora_")
        if heads_and_embeddings([module]):
            raise EngineError(
                f"{where} adapts {module!r}, an output head or embedding, which no engine does; train it "
                "with other target_modules"
            )
        weight = base.get(f"{module}.weight")
        if weight is None or len(weight) != 2 or len(shape) != 2 or not side.startswith(("A", "B")):
            continue
        # A is (rank, in), B is (out, rank), the weight is (out, in).
        found, expected = (shape[1], weight[1]) if side.startswith("A") else (shape[0], weight[0])
        if found != expected:
            raise EngineError(
                f"{where} has {found} features in {name!r}, the model's {module!r} has {expected}; "
                "train the adapter on this base model"
            )


def weights_sha256(adapter: Adapter) -> str:
    """Return the SHA-256 of the adapter's weights, which must be there."""
    with weights_file(Path(adapter.path)).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    return {name: tuple(entry["shape"]) for name, entry in tensors_of(file).items()}


def tensors_of(file: Path) -> dict[str, Any]:
    """Read what a safetensors file says of each tensor: a little-endian uint64 length, then JSON."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > file.stat().st_size:
            raise ValueError(f"{file} is no safetensors file or was cut short")
        header: dict[str, Any] = json.loads(stream.read(length))
    return {name: entry for name, entry in header.items() if name != "__metadata__"}
