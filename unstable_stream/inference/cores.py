"""The cores of this machine that a process may compute on, and the fastest number format of its CPU."""

import os
from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError
from unstable_stream.inference.model_config import ModelShape, read_shape

_SMALL: Final = 50_000_000
"""Fewer parameters than this are not worth a measurement: float32."""
_WORTH_IT: Final = 1.3
"""bfloat16 must be so many times as fast: it rounds, and around the matrix products it saves nothing."""

_logger = get_logger(__name__)


def available_cores() -> int:
    """Return the number of cores, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def fastest_on_cpu(
    who: str, model_path: str, *, rows: int, num_threads: int | None, backward: bool = False
) -> str:
    """Return ``float32`` or ``bfloat16``, whichever this CPU computes the model in faster; takes a second.

    Args:
        who: the process, for its log.
        model_path: directory of the model.
        rows: tokens that it usually computes together.
        num_threads: threads that it computes with.
        backward: true if it trains.
    """
    try:
        shape: ModelShape | None = read_shape(model_path)
    except ConfigError:
        shape = None  # of an unknown form
    if shape is None or shape.parameters < _SMALL:
        return "float32"
    from unstable_stream.algorithms.learners.hardware import bfloat16_speed  # loads torch

    speed = bfloat16_speed(
        shape.hidden, shape.intermediate, rows=rows, num_threads=num_threads, backward=backward
    )
    chosen = "bfloat16" if speed >= _WORTH_IT else "float32"
    _logger.info("number format measured", process=who, dtype=chosen, bfloat16_speed=round(speed, 2))
    return chosen
