"""Choose the number format of learner and engine: as configured, or by a short measurement on a CPU."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError
from unstable_stream.inference.model_config import ModelShape, read_shape

if TYPE_CHECKING:
    from unstable_stream.services.workers.checkpoint_home import CheckpointHome

_SMALL: Final = 50_000_000
"""Fewer parameters than this are not worth a measurement: float32."""
_WORTH_IT: Final = 1.3
"""bfloat16 must be so many times as fast: it rounds, and around the matrix products it saves nothing."""
_NOTE: Final = "dtype"
"""The file with the choice."""

_logger = get_logger(__name__)


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


def kept(home: "CheckpointHome", choose: Callable[[], str]) -> str:
    """Return the choice recorded beside the checkpoints of a run; else choose, and record it.

    A run that is resumed, also on another machine, computes in the same numbers: its curve goes on bit for
    bit. Checkpoints without a record were made in float32, before there was a choice.
    """
    recorded = home.read_note(_NOTE)
    if recorded is not None:
        return recorded.strip()
    chosen = "float32" if any(not name.startswith(".") for name in home.attempts()) else choose()
    home.write_note(_NOTE, f"{chosen}\n")
    return chosen
