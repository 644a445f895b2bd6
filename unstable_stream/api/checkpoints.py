"""Checkpoints of the runs of a place by name, ``RUN@UPDATE``, and as players of other runs."""

from pathlib import Path
from typing import Any

from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.api.shorthand import TINY_PLAYER
from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.fork import Fork, find_fork

__all__ = ["as_opponent", "find_checkpoint", "find_policy", "split_name"]


def split_name(name: str) -> tuple[str, int | None]:
    """Return the run and the update of ``RUN@UPDATE``; ``RUN`` is its newest checkpoint, update ``None``."""
    run, at, update = name.rpartition("@")
    if not at:
        return name, None
    if not update.isdecimal():
        raise ConfigError(f"{name!r}: expected RUN@UPDATE with a number, e.g. demo-2026@20")
    return run, int(update)


def find_checkpoint(place: Place, run: str, update: int | None) -> tuple[Fork, RunConfig]:
    """Return a checkpoint to play with, the last of the fork, and the configuration of its run.

    Raises:
        RunError: no such run or checkpoint, or its files are missing.
    """

    async def find() -> tuple[Fork, RunConfig]:
        async with place.opened_history() as log:
            return await find_fork(log, run, update, to_train=False)

    return wait_for(find())


def find_policy(place: Place, policy: str) -> tuple[Fork, RunConfig] | None:
    """Return the checkpoint that ``RUN`` or ``RUN@UPDATE`` names, and its run's configuration.

    ``None``: it names a model. Raises as :func:`find_checkpoint`.
    """
    return None if _names_model(policy) else find_checkpoint(place, *split_name(policy))


def _names_model(policy: str) -> bool:
    """Tell a model from a run: it is ``tiny-player``, a directory, or has the slash of a Hugging Face id."""
    return policy == TINY_PLAYER or "/" in policy or Path(policy).is_dir()


def as_opponent(fork: Fork) -> dict[str, Any]:
    """Return the configuration of an opponent that is a checkpoint: its adapter, under ``RUN@UPDATE``."""
    chosen = fork.checkpoints[-1]
    return {
        "name": f"{fork.parent_run_id}@{fork.update}",
        "kind": "adapter",
        "path": chosen.path,
        "sha256": chosen.sha256,
    }
