"""Checkpoints on disk: complete or absent, recognised by digest, loadable by PEFT, vLLM and transformers.

A directory holds::

    adapter_config.json         PEFT's format
    adapter_model.safetensors   PEFT's format
    networks.safetensors        the algorithm's own networks, such as a critic (absent if it has none)
    optimizer.pt                optimizer state, and the weights of a reference policy (absent when saved
                                light or pruned)
    state.json                  update number, positions, seed, the states of the algorithm and of
                                the sampling transformations, sha256 of the files above

If all parameters are trained, a whole model stands in place of the adapter: ``config.json``,
``model.safetensors`` and the tokenizer, Hugging Face's format.

The learning rate and all random choices are functions of settings, seed and update number. So a checkpoint
needs no other schedule state or random state.

Every save has a directory of its own, ``ckpt-000012-5f3a9c01``: the checkpoint and a random word
(:func:`attempt_directory`). None is ever replaced. A learner whose place another one has taken may still be
alive and save, and must not touch what its successor has published.

Saving, in order; a crash between any two leaves all other checkpoints untouched:

1. write every file into ``.tmp-NAME`` beside the destination and fsync each;
2. fsync that directory;
3. rename ``.tmp-NAME`` to ``NAME`` and fsync the parent.

Attempts that were never published, whole or not, are found by :func:`attempts` and removed by
:func:`remove_attempts`. The saver holds a lock on ``.tmp-NAME``, so nobody removes it under a living one.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from unstable_stream.errors import CheckpointError

_WEIGHTS: Final = {"lora": "adapter_model.safetensors", "all": "model.safetensors"}
"""The weight file by the trained parameters."""
_CONFIG: Final = {"lora": "adapter_config.json", "all": "config.json"}
_NETWORKS: Final = "networks.safetensors"
_OPTIMIZER: Final = "optimizer.pt"
_STATE: Final = "state.json"
_TMP: Final = ".tmp-"
_ATTEMPT: Final = re.compile(
    r"(\.tmp-(replaced-)?)?ckpt-((?P<model>[A-Za-z]\w*)-)?\d{6,}(-[0-9a-f]{8})?", re.ASCII
)
"""The directories of checkpoints; earlier versions gave them no word of their own, and replaced them."""
_FORMAT: Final = 1
_COPIED_BYTES: Final = 1 << 20


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
    algorithm: dict[str, Any] = field(default_factory=dict)
    """The algorithm's own state, as its ``state_dict`` returned it; empty if it has none."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """The state of the sampling transformations, as their ``state`` returned it."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint that was read and verified."""

    info: CheckpointInfo
    state: CheckpointState
    weights: dict[str, Tensor]
    """The adapter's tensors, or the whole model's."""
    networks: dict[str, Tensor]
    """The parameters of the algorithm's own networks, named ``network.parameter``; empty if it has none."""
    optimizer: dict[str, Any] | None
    """``Training.state_dict()``, or ``None`` if it was not saved or has been pruned."""


def attempt_directory(root: Path, model_uid: str) -> Path:
    """Return a directory in ``root`` for one attempt to save a checkpoint: no other attempt has its name."""
    return root / f"{model_uid}-{secrets.token_hex(4)}"


def weight_file_content(weights: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of the weight file with these tensors: the same for the same tensors."""
    return safetensors.torch.save(dict(weights), metadata={"format": "pt"})


def save_checkpoint(
    directory: Path,
    *,
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    state: CheckpointState,
    networks: Mapping[str, Tensor] | None = None,
    optimizer: Mapping[str, Any] | None = None,
    tokenizer: Mapping[str, bytes] | None = None,
) -> CheckpointInfo:
    """Write a checkpoint durably and atomically; ``optimizer=None`` saves only the weights.

    ``config`` is the content of the file that tells others how to load the weights; ``tokenizer`` holds more
    such files by name.

    Raises :class:`~unstable_stream.errors.CheckpointError`: the disk is full or not writable, or there is
    such a directory already.
    """
    directory = directory.absolute()
    parent = directory.parent
    staging = parent / f"{_TMP}{directory.name}"
    weight_file = _WEIGHTS[state.parameters]
    files = {
        **(tokenizer or {}),
        weight_file: weight_file_content(weights),
        _CONFIG[state.parameters]: json.dumps(dict(config), indent=2, sort_keys=True).encode(),
    }
    if networks:
        files[_NETWORKS] = safetensors.torch.save(dict(networks))
    if optimizer is not None:
        buffer = io.BytesIO()
        torch.save(dict(optimizer), buffer)
        files[_OPTIMIZER] = buffer.getvalue()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    summary = {"format": _FORMAT, "sha256": digests, **asdict(state)}
    files[_STATE] = json.dumps(summary, indent=2, sort_keys=True).encode()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir()
        with _locked(staging) as handle:
            for name, content in files.items():
                _write_durably(staging / name, content)
            os.fsync(handle)
            staging.rename(directory)
        _sync_directory(parent)
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
        summary.pop("settings", None)  # written by earlier versions, for readers
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
    network_bytes = contents.get(_NETWORKS)
    return LoadedCheckpoint(
        info=CheckpointInfo(str(directory), digests[weight_file], len(weight_bytes)),
        state=state,
        weights=safetensors.torch.load(weight_bytes),
        networks={} if network_bytes is None else safetensors.torch.load(network_bytes),
        optimizer=None
        if optimizer_bytes is None
        else torch.load(io.BytesIO(optimizer_bytes), map_location="cpu", weights_only=True),
    )


def copy_loadable(path: Path | str, target: Path, expect_sha256: str | None = None) -> CheckpointInfo:
    """Copy what PEFT or transformers load of a checkpoint, and verify every digest on the way.

    Optimizer state and the algorithm's own networks stay behind. An adapter that a run began with may have
    been saved by others: it has no ``state.json``, and only its weights are verified.

    Args:
        path: the checkpoint's directory.
        target: an existing directory for the files.
        expect_sha256: the digest of the weights in the checkpoint event.

    Returns:
        The facts about the copy.

    Raises:
        CheckpointError: a file is missing, or differs from its recorded digest.
        OSError: the copy cannot be written.
    """
    directory = Path(path).absolute()
    remedy = "name another checkpoint, or restore this directory from a backup"
    try:
        saved = directory / _STATE
        summary = json.loads(saved.read_bytes()) if saved.exists() else {}
        parameters = summary.get("parameters", "lora")
        weight_file, config_file = _WEIGHTS[parameters], _CONFIG[parameters]
        digests = dict(summary.get("sha256", {config_file: None, weight_file: None}))
        digests[weight_file] = expect_sha256 or digests[weight_file]
        if outside := [name for name in digests if Path(name).name != name]:
            raise ValueError(f"{outside[0]!r} is no name of a file in it")
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise CheckpointError(f"checkpoint {directory}: unreadable {_STATE}: {error!r}; {remedy}") from error
    # An adapter needs nothing else; a whole model has the files of its tokenizer too.
    needed = {weight_file, config_file} if parameters == "lora" else digests.keys() - {_NETWORKS, _OPTIMIZER}
    for name in sorted(needed):
        if not (directory / name).is_file():
            raise CheckpointError(f"checkpoint {directory} lacks {name}; {remedy}")
        found = _copy_hashed(directory / name, target / name)
        if digests.get(name) not in (None, found):
            raise CheckpointError(
                f"{directory / name} is damaged: its sha256 is {found}, expected {digests[name]}; {remedy}"
            )
        digests[name] = found
    size = (target / weight_file).stat().st_size
    return CheckpointInfo(str(target.absolute()), digests[weight_file], size)


def prune_optimizer_states(published: Sequence[Path], *, keep_last: int) -> list[Path]:
    """Delete the optimizer states of all but the newest ``keep_last`` checkpoints; weights stay.

    ``published`` are the directories of checkpoints that the log names, oldest first. Others are left alone:
    an unpublished attempt must not count as the newest. So are states that a fork needs: it has given them a
    second name (:meth:`~unstable_stream.runs.fork.Fork.hold_optimizer_state`). Returns the deleted files. A
    pruned checkpoint can still be loaded, without optimizer state.
    """
    states = [directory / _OPTIMIZER for directory in published[: max(0, len(published) - keep_last)]]
    pruned = [path for path in states if path.exists() and not _held(path)]
    for path in pruned:
        # Out of a fork's reach first: one that came between has given it its second name by now.
        aside = path.rename(path.with_name(f"{path.name}.pruned"))
        if _held(path):
            aside.rename(path)
        else:
            aside.unlink()
    return [path for path in pruned if not path.exists()]


def _held(state: Path) -> list[Path]:
    return list(state.parent.glob(f"{state.name}.of-*"))


def attempts(root: Path) -> list[Path]:
    """Return the directories of all saves in ``root``, published or not, finished or not."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if is_attempt(path.name) and path.is_dir())


def is_attempt(name: str) -> bool:
    """Tell whether a name is in the form of a save's directory."""
    return _ATTEMPT.fullmatch(name) is not None


def saved_model(name: str) -> str | None:
    """Return the name of the trained model that a save's directory is of; ``None``: the only one of a run."""
    found = _ATTEMPT.fullmatch(name)
    return None if found is None else found["model"]


def remove_attempts(directories: Iterable[Path]) -> list[Path]:
    """Remove attempts that can never be published; return those that are gone.

    A directory that another process is writing is left to it.
    """
    removed = []
    for directory in directories:
        with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(directory):
            shutil.rmtree(directory)
            removed.append(directory)
    return removed


def _read_verified(path: Path, digest: str, remedy: str) -> bytes:
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise CheckpointError(f"{path} is damaged: its sha256 is {found}, expected {digest}; {remedy}")
    return content


def _copy_hashed(source: Path, target: Path) -> str:
    """Copy a file piece by piece, for it may be a whole model; return the digest of what was written."""
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while piece := reader.read(_COPIED_BYTES):
            digest.update(piece)
            writer.write(piece)
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[int]:
    """Hold the lock of a directory; yield its descriptor. Raises ``BlockingIOError``: another has it."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield handle
    finally:
        os.close(handle)


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
