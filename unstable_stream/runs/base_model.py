"""The base model of a run: the one with which it began, wherever a later command stands.

A configuration holds an absolute directory, and the run records the fingerprint of its files. A model of
Hugging Face's has a commit instead.
"""

from pathlib import Path
from typing import NamedTuple, Self

from unstable_stream.inference.base_model import (
    is_snapshot,
    model_directory,
    model_fingerprint,
    resolve_model,
)
from unstable_stream.runs.config import RunConfig


def base_model_path(config: RunConfig, *, weights: bool = True) -> str:
    """Return the directory of a run's base model, fetched if it is one of Hugging Face's; of such a one
    without its weights, if those are not wanted.

    Raises:
        ConfigError: it is not there, or not the model that the run recorded; the message has both
            fingerprints and the remedy.
    """
    return resolve_model(
        config.model,
        revision=config.model_revisions.get(config.model),
        fingerprint=config.model_fingerprint,
        weights=weights,
    )


def with_fingerprint(config: RunConfig, path: str) -> RunConfig:
    """Return a configuration with the fingerprint of its base model, as the run records it.

    ``path`` is what :func:`base_model_path` returned.
    """
    if config.model_fingerprint or is_snapshot(path):
        return config
    return config.model_copy(update={"model_fingerprint": model_fingerprint(Path(path))})


def keeps_base_model(recorded: RunConfig, changed: RunConfig) -> bool:
    """Return whether a run would go on with its base model: that directory, or another one with the same
    files. What is in the recorded directory is compared when it is used.

    Raises:
        ConfigError: another directory holds another model, or none.
    """
    if recorded.model == changed.model:
        return True
    if recorded.model_fingerprint:
        base_model_path(changed.model_copy(update={"model_fingerprint": recorded.model_fingerprint}))
    return bool(recorded.model_fingerprint)


class ModelIdentity(NamedTuple):
    """The identity of a base model, to compare two runs, or a run and a model that a command names."""

    name: str
    fingerprint: str
    """Empty: none was recorded."""

    @classmethod
    def of_run(cls, config: RunConfig) -> Self:
        """Return the identity that the run recorded."""
        return cls(config.model, config.model_fingerprint)

    @classmethod
    def of_model(cls, name: str) -> Self:
        """Return the identity of a model as it is now: a directory, an id or ``tiny-player``."""
        path = model_directory(name)
        if name != "tiny-player" and path is None:
            return cls(name, "")
        fingerprint = model_fingerprint(Path(resolve_model(name)))
        return cls(name if path is None else str(path.absolute()), fingerprint)

    def matches(self, other: "ModelIdentity") -> bool:
        """Return whether both are one model: by fingerprint, where both have one."""
        if self.fingerprint and other.fingerprint:
            return self.fingerprint == other.fingerprint
        return self.name == other.name

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint[:12]})" if self.fingerprint else self.name
