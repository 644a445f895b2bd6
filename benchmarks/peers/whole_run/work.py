"""The work that both sides do, and how a side tells what it has done.

Imported in the ancestor's processes too, so it needs nothing but the standard library.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ENVIRONMENT: Final = "SimpleTak-v0-train"
TEMPLATE: Final = "simpletak-board"
"""The tiny player's: own symbol and board, 19 tokens."""
MAX_TOKENS: Final = 1
"""A completion is one action."""
GAMES_IN_FLIGHT: Final = 16
BATCH_STEPS: Final = 384
BUFFER_STEPS: Final = 2 * BATCH_STEPS
"""The ancestor's default."""
LEARNING_RATE: Final = 1e-5
"""The ancestor's default. So small that games stay as long as they are."""
GRAD_CLIP: Final = 0.2
LORA_RANK: Final = 16
LORA_ALPHA: Final = 32
PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FORMAT_REWARD: Final = 1.5
INVALID_MOVE_PENALTY: Final = (1.0, -1.0)
"""Reward of a valid move, and of an invalid one; the ancestor's defaults, as that above."""
MAX_PARALLEL_SEQ: Final = 128
MAX_LORAS: Final = 8
CONTEXT_TOKENS: Final = 512
KV_CACHE_GB: Final = 1


@dataclass(frozen=True, slots=True)
class Task:
    """What a side is asked for."""

    marks: Path
    """Where it tells what it has done."""
    rows: int
    """Of a micro-batch."""
    updates: int
    engine: str
    """``transformers`` or ``vllm``; the ancestor has only the latter."""


def read_task() -> Task:
    """Read the command line of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--marks", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--engine", choices=["transformers", "vllm"], required=True)
    return Task(**vars(parser.parse_args()))


def tell(marks: Path, what: str, at: float | None = None, **more: Any) -> None:
    """Append a line that tells what was done, and when (seconds since the epoch; ``None``: now).

    ``Any``: what JSON can hold.
    """
    line = json.dumps({"what": what, "at": time.time() if at is None else at, **more})
    # One write of a short line: the ancestor's processes append to the same file.
    with marks.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
