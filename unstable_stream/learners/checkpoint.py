"""Checkpoints on disk: complete or absent, recognised by digest, loadable by PEFT, vLLM and transformers.

A directory holds::

    adapter_config.json         PEFT's format
    adapter_model.safetensors   PEFT's format
    optimizer.pt                optimizer state (absent when saved light or pruned)
    state.json                  update number, positions, seed, settings, the algorithm's own state, sha256 of
                                the files above

If all parameters are trained, a whole model stands in place of the adapter: ``config.json``,
``model.safetensors`` and the tokenizer, Hugging Face's format.

The learning rate and all random choices are functions of settings, seed and update number. So a checkpoint
needs no other schedule state or random state.

Saving, in order; a crash between any two leaves the previous checkpoints untouched and at most a
``.tmp-`` directory that the next save removes:

1. write every file into ``.tmp-NAME`` beside the destination and fsync each;
2. fsync that directory;
3. if there is an unpublished attempt of the same name, rename it (see :func:`save_checkpoint`);
4. rename ``.tmp-NAME`` to ``NAME`` and fsync the parent.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unstable_stream.errors import CheckpointError

__all__ = [
    "CheckpointInfo",
    "CheckpointState",
    "LoadedCheckpoint",
    "load_checkpoint",
    "prune_optimizer_states",
    "save_checkpoint",
]

_WEIGHTS: Final = {"lora": "adapter_model.safetensors", "all": "model.safetensors"}
"""The weight file by the trained parameters."""
_CONFIG: Final = {"lora": "adapter_config.json", "all": "config.json"}
_OPTIMIZER: Final = "optimizer.pt"
_STATE: Final = "state.json"
_TMP: Final = ".tmp-"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """The facts about the files that a checkpoint event records."""

    path: str
    """Absolute directory."""
    sha256: str
    """Hex digest of the weight file."""
    size_bytes: int
    """Bytes of the weight file."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The content of ``state.json``: the state of training."""

    update: int
    """The number of finished updates; training goes on with the next one."""
    base_model: str
    lora: dict[str, Any]
    parameters: str = "lora"
    """The trained parameters: ``lora`` or ``all``."""
    seed: int = 0
    samples_seen: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    """The next offset by ``topic[partition]``, as in the learner update."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The optimizer and schedule settings of the training, for readers. They are not restored."""
    algorithm: dict[str, Any] = field(default_factory=dict)
    """The algorithm's own state, as its ``state_dict`` returned it; empty if it has none."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint that was read and verified."""

    info: CheckpointInfo
    state: CheckpointState
    weights: dict[str, Tensor]
    """The adapter's tensors, or the whole model's."""
    optimizer: dict[str, Any] | None
    """``torch.optim.Optimizer.state_dict()``, or ``None`` if it was not saved or has been pruned."""


def save_checkpoint(
    directory: Path,
    *,
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    state: CheckpointState,
    optimizer: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, bytes] | None = None,
) -> CheckpointInfo:
    """Write a checkpoint durably and atomically; ``optimizer=None`` saves only the weights.

    ``config`` is the content of the file that tells others how to load the weights; ``tokenizer`` holds more
    such files by name.

    If ``directory`` exists, its event was never published: only then is an update made again. So it is
    replaced. Leftovers of crashed saves beside it are removed.

    Raises :class:`~unstable_stream.errors.CheckpointError`: the disk is full or not writable.
    """
    directory = directory.absolute()
    parent = directory.parent
    staging = parent / f"{_TMP}{directory.name}"
    weight_file = _WEIGHTS[state.parameters]
    files = {
        **(tokenizer or {}),
        weight_file: safetensors.torch.save(dict(weights), metadata={"format": "pt"}),
        _CONFIG[state.parameters]: json.dumps(dict(config), indent=2, sort_keys=True).encode(),
    }
    if optimizer is not None:
        buffer = io.BytesIO()
        torch.save(dict(optimizer), buffer)
        files[_OPTIMIZER] = buffer.getvalue()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    summary = {"format": _FORMAT, "sha256": digests, **asdict(state)}
    files[_STATE] = json.dumps(summary, indent=2, sort_keys=True).encode()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(parent)
        staging.mkdir()
        for name, content in files.items():
            _write_durably(staging / name, content)
        _sync_directory(staging)
        if directory.exists():
            directory.rename(parent / f"{_TMP}replaced-{directory.name}")
        staging.rename(directory)
        _sync_directory(parent)
        _remove_leftovers(parent)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {directory} could not be written: {error}. Free space or fix permissions and resume "
            "the run; earlier checkpoints are intact"
        ) from error
    return CheckpointInfo(str(directory), digests[weight_file], len(files[weight_file]))


def load_checkpoint(path: Path | str, expect_sha256: str | None = None) -> LoadedCheckpoint:
    """Read a checkpoint and verify every digest.

    Args:
        path: the checkpoint's directory.
        expect_sha256: the digest of the weights in the checkpoint event.

    Raises:
        CheckpointError: the checkpoint is missing, incomplete, written by a newer version, or differs from
            the recorded digest.
    """
    directory = Path(path).absolute()
    remedy = "resume from an earlier checkpoint of the run, or restore this directory from a backup"
    try:
        summary = json.loads((directory / _STATE).read_bytes())
        version = summary.pop("format")
        digests = summary.pop("sha256")
        if version > _FORMAT:
            raise CheckpointError(
                f"checkpoint {directory} has format {version}; this package reads up to {_FORMAT}. Upgrade it"
            )
        state = CheckpointState(**summary)
        contents = {
            name: _read_verified(directory / name, digest, remedy)
            for name, digest in digests.items()
            if name != _OPTIMIZER or (directory / name).exists()  # the optimizer state may have been pruned
        }
        weight_file = _WEIGHTS[state.parameters]
        weight_bytes = contents[weight_file]
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {directory} lacks {error.filename}; {remedy}") from error
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise CheckpointError(f"checkpoint {directory}: unreadable {_STATE}: {error!r}; {remedy}") from error
    if expect_sha256 is not None and digests[weight_file] != expect_sha256:
        raise CheckpointError(
            f"checkpoint {directory} holds weights {digests[weight_file]}, the log recorded {expect_sha256}: "
            f"it is another checkpoint under the same name; {remedy}"
        )
    optimizer_bytes = contents.get(_OPTIMIZER)
    return LoadedCheckpoint(
        info=CheckpointInfo(str(directory), digests[weight_file], len(weight_bytes)),
        state=state,
        weights=safetensors.torch.load(weight_bytes),
        optimizer=None
        if optimizer_bytes is None
        else torch.load(io.BytesIO(optimizer_bytes), map_location="cpu", weights_only=True),
    )


def prune_optimizer_states(root: Path, *, keep_last: int) -> list[Path]:
    """Delete the optimizer states of all but the newest ``keep_last`` checkpoints; weights stay.

    The newest are last by name, because names are zero-padded. Returns the deleted files. A pruned checkpoint
    can still be loaded, without optimizer state.
    """
    states = sorted(root.glob(f"[!.]*/{_OPTIMIZER}"), key=lambda path: path.parent.name)
    pruned = states[: max(0, len(states) - keep_last)]
    for path in pruned:
        path.unlink()
    return pruned


def _read_verified(path: Path, digest: str, remedy: str) -> bytes:
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise CheckpointError(f"{path} is damaged: its sha256 is {found}, expected {digest}; {remedy}")
    return content


def _remove_leftovers(parent: Path) -> None:
    for leftover in parent.glob(f"{_TMP}*"):
        shutil.rmtree(leftover)


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
