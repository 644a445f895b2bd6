"""Checkpoints of the runs of a place by name, and as players of other runs.

A name is ``RUN@UPDATE``, or in a run that trains several models, ``RUN@MODEL/UPDATE``.
"""

from pathlib import Path
from typing import Any, NamedTuple

from unstable_stream.api.place import Place
from unstable_stream.api.shorthand import TINY_PLAYER
from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.fork import Fork, find_fork


class CheckpointName(NamedTuple):
    """The parts of a checkpoint's name."""

    run: str
    update: int | None = None
    """``None``: the newest checkpoint."""
    model: str | None = None
    """``None``: the run trains one."""


def split_name(name: str) -> CheckpointName:
    """Return the parts of ``RUN``, ``RUN@UPDATE``, ``RUN@MODEL`` or ``RUN@MODEL/UPDATE``."""
    run, at, rest = name.rpartition("@")
    if not at:
        return CheckpointName(name)
    model, _, update = rest.rpartition("/")
    if not model and update[:1].isalpha():
        return CheckpointName(run, model=update)
    if not update.isdecimal():
        raise ConfigError(
            f"{name!r}: expected RUN@UPDATE with a number, e.g. demo-2026@20, or RUN@MODEL/UPDATE"
        )
    return CheckpointName(run, int(update), model or None)


def find_checkpoint(
    place: Place, run: str, update: int | None = None, model: str | None = None
) -> tuple[Fork, RunConfig]:
    """Return a checkpoint to play with, the last of the fork, and the configuration of its run.

    Raises:
        RunError: no such run or checkpoint, or its files are missing.
    """

    return place.ask_history(
        lambda log: find_fork(log, run, update, model=model, to_train=False, located=place.data.located)
    )


def find_policy(place: Place, policy: str) -> tuple[Fork, RunConfig] | None:
    """Return the checkpoint of this name and its run's configuration; see :func:`split_name`.

    ``None``: it names a model. Raises as :func:`find_checkpoint`.
    """
    return None if _names_model(policy) else find_checkpoint(place, *split_name(policy))


def _names_model(policy: str) -> bool:
    """Tell a model from a run: it is ``tiny-player``, a directory, or has the slash of a Hugging Face id."""
    return policy == TINY_PLAYER or "/" in policy.partition("@")[0] or Path(policy).is_dir()


def as_opponent(fork: Fork) -> dict[str, Any]:
    """Return the configuration of an opponent that is a checkpoint: its adapter, under the checkpoint's
    name."""
    chosen = fork.checkpoints[-1]
    return {
        "name": fork.name,
        "kind": "adapter",
        "path": chosen.path,
        "sha256": chosen.sha256,
    }
