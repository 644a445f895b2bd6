"""Check a LoRA adapter by its files alone, before an engine reads the weights."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unstable_stream.adapter_format import CONFIG_FILE, REMEDY, WEIGHTS_FILE, refused_fields
from unstable_stream.errors import EngineError
from unstable_stream.inference.engine import Adapter

__all__ = ["check_adapter_files", "weight_shapes"]

_PREFIX = "base_model.model."


def weight_shapes(model_path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a model saved as safetensors; empty if there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(model_path.glob("*.safetensors")):
        shapes |= _header(file)
    return shapes


def check_adapter_files(adapter: Adapter, base: Mapping[str, tuple[int, ...]], max_rank: int) -> None:
    """Check that the adapter is there, a plain LoRA of rank ``max_rank`` or less, and fits ``base``'s shapes.

    vLLM copies weights into slots of the base model's size and accepts smaller ones without a word, so an
    adapter of another model would generate nonsense.

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


def _header(file: Path) -> dict[str, tuple[int, ...]]:
    """Read shapes by tensor name from a safetensors file: a little-endian uint64 length, then JSON."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > file.stat().st_size:
            raise ValueError(f"{file} is no safetensors file or was cut short")
        header = json.loads(stream.read(length))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
