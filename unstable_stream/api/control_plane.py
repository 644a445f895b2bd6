"""Tell what a number of GPUs needs around it: cores, partitions, disk."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unstable_stream.errors import ConfigError

if TYPE_CHECKING:
    from unstable_stream.launch.control_plane import ControlPlane

__all__ = ["control_plane"]

_SIZE: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([BM])(?![a-z])", re.IGNORECASE)


def control_plane(
    gpus: int,
    model: str | None = None,
    *,
    tokens_per_gpu_s: float | None = None,
    prompt_tokens: float = 700.0,
    completion_tokens: float = 250.0,
    turns: float = 5.0,
    trajectories: float = 2.0,
    runs: int = 1,
    environments: int = 1,
) -> "ControlPlane":
    """Return what so many GPUs that generate need around them; see docs/ceiling.md.

    Args:
        gpus: those that the engines compute on.
        model: a directory, or a name that tells the size, such as ``Qwen/Qwen3-8B``; ``None``: one of 7.6
            billion parameters.
        tokens_per_gpu_s: what a GPU generates a second, all its requests together; ``None``: 5,000 with 7.6
            billion parameters, and in inverse proportion to them with others.
        prompt_tokens: of a turn, on average.
        completion_tokens: of a turn, on average.
        turns: of a seat in a game.
        trajectories: seats of a game that the model plays.
        runs: those that share the GPUs evenly.
        environments: those of each run, which share its turns evenly.

    Returns:
        A plan: ``needs`` by process, ``cores``, ``topics`` with the partitions they need,
        ``log_bytes_per_s``, ``archive_bytes_per_s``, ``warnings``, and ``table()`` as text.

    Raises:
        ConfigError: a number is not above 0, or the model's size is not known.
    """
    from unstable_stream.launch.control_plane import Traffic, plan_control_plane, usual_tokens_per_gpu_s

    if tokens_per_gpu_s is None:
        tokens_per_gpu_s = usual_tokens_per_gpu_s(_parameters(model))
    return plan_control_plane(
        Traffic(
            gpus=gpus,
            tokens_per_gpu_s=tokens_per_gpu_s,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            turns=turns,
            trajectories=trajectories,
            runs=runs,
            environments=environments,
        )
    )


def _parameters(model: str | None) -> float | None:
    if model is None:
        return None
    if Path(model).is_dir():
        from unstable_stream.inference.model_shape import read_shape

        return read_shape(model).parameters
    sizes = _SIZE.findall(model)
    if len(sizes) != 1:
        raise ConfigError(
            f"model = {model!r}: no such directory, and the name does not tell the size as "
            "Qwen/Qwen3-8B does; give --tokens-per-gpu, the tokens that a GPU generates with it a second"
        )
    number, unit = sizes[0]
    return float(number) * (1e9 if unit.upper() == "B" else 1e6)
