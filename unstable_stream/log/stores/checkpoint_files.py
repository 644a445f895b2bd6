"""Read checkpoints wherever they are: a directory is used in place, one in a store is fetched to this host.

What a checkpoint consists of is in its ``state.json``; :mod:`unstable_stream.algorithms.learners.checkpoint`
writes it. An adapter that a run began with may have been saved by others and have none.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.errors import CheckpointError, StoreError
from unstable_stream.log.stores.adapter_format import CONFIG_FILE, MODEL_WEIGHTS_FILE, WEIGHTS_FILE
from unstable_stream.log.stores.address import checked_address, is_address, path_part
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.store import Store

STATE_FILE: Final = "state.json"
OPTIMIZER_FILE: Final = "optimizer.pt"
NETWORKS_FILE: Final = "networks.safetensors"
LEARNER_STATE_FILE: Final = "learner-state.zlib"
"""The state of the learner; see :mod:`unstable_stream.services.workers.learner_state`."""
_TO_TRAIN_ON: Final = frozenset({OPTIMIZER_FILE, NETWORKS_FILE, LEARNER_STATE_FILE})
"""Files that no engine loads."""
FETCHED_TO_TRAIN: Final = ".to-train"
"""Beside fetched files, if all that a learner reads was fetched too."""
_OF_OTHERS: Final[Mapping[str, str | None]] = {CONFIG_FILE: None, WEIGHTS_FILE: None}
"""The files of an adapter without ``state.json``, none with a recorded digest."""

_log = get_logger(__name__)


@contextmanager
def opened_checkpoint(
    location: str, sha256: str | None = None, *, to_train: bool = False, cache: HostCache | None = None
) -> Iterator[Path]:
    """Give a checkpoint as a directory of this host, for as long as the caller needs it.

    A directory is given as it is, unread. Of one in a store every file is compared with its recorded digest
    when it is fetched, and again each time that it is opened: what was damaged since is fetched anew.

    Args:
        location: the directory or address of the checkpoint.
        sha256: the digest of its weights in the checkpoint event; ``None``: none was recorded.
        to_train: whether the optimizer state and all else that only a learner reads are wanted too.
        cache: where to keep what is fetched; by default that of this host.

    Raises:
        ConfigError: it cannot be such a location.
        CheckpointError: it is not there, incomplete, or another one than was recorded.
        StoreUnavailableError: the store was away for too long.
        StoreError: the store refuses, or the cache cannot be written.
    """
    checked_address(location, "checkpoint")
    if not is_address(location):
        yield Path(location)
        return
    cache = cache or HostCache.of_host()
    seen = _Fetching(location, sha256, to_train=to_train)
    with cache.fetched(location, seen.is_whole, seen.fetch) as directory:
        yield directory


class _Fetching:
    """One fetch of one checkpoint."""

    def __init__(self, location: str, sha256: str | None, *, to_train: bool) -> None:
        self._location = location
        self._sha256 = sha256
        self._to_train = to_train

    def is_whole(self, directory: Path) -> bool:
        """Tell whether all that is wanted is there, as it was recorded."""
        if self._to_train and not (directory / FETCHED_TO_TRAIN).is_file():
            return False
        try:
            saved = directory / STATE_FILE
            digests = _digests(saved.read_bytes(), self._location) if saved.is_file() else _OF_OTHERS
            for name, digest in self._expected(digests).items():
                path = directory / name
                if name == OPTIMIZER_FILE and not path.is_file():
                    continue  # it had been pruned when the rest was fetched
                if _sha256_of_file(path) != (digest or _sha256_of_file(path)):
                    return False
        except (FileNotFoundError, CheckpointError):
            return False
        return True

    def fetch(self, directory: Path) -> None:
        """Fetch what is missing or damaged, each file compared with its digest."""
        store = Store(self._location)
        there = store.names()
        if not there:
            raise CheckpointError(
                f"checkpoint {self._location} is not in the store: name another checkpoint, or restore it "
                "from a backup"
            )
        digests: Mapping[str, str | None] = _OF_OTHERS
        if STATE_FILE in there:
            store.get(STATE_FILE, directory / STATE_FILE)
            digests = _digests((directory / STATE_FILE).read_bytes(), self._location)
        weights = _weights_in(digests)
        if self._sha256 is not None and digests[weights] not in (None, self._sha256):
            raise CheckpointError(
                f"checkpoint {self._location} holds weights {digests[weights]}, the log recorded "
                f"{self._sha256}: it is another checkpoint under the same name; name another one, or restore "
                "it from a backup"
            )
        for name, digest in self._expected(digests).items():
            self._fetch_file(store, there, name, directory / name, digest)
        if self._to_train:
            if LEARNER_STATE_FILE in there:
                store.get(
                    LEARNER_STATE_FILE, directory / LEARNER_STATE_FILE
                )  # it carries a checksum of its own
            (directory / FETCHED_TO_TRAIN).touch()
        _log.info("checkpoint fetched", location=self._location, directory=str(directory))

    def _expected(self, digests: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the digest of each file that is wanted; ``None``: it was not recorded."""
        weights = _weights_in(digests)
        whole = {**digests, weights: self._sha256 or digests[weights]}
        return {name: whole[name] for name in whole if self._to_train or name not in _TO_TRAIN_ON}

    def _fetch_file(
        self, store: Store, there: list[str], name: str, target: Path, digest: str | None
    ) -> None:
        with suppress(FileNotFoundError):
            if digest is not None and _sha256_of_file(target) == digest:
                return
        source = name
        if name == OPTIMIZER_FILE and name not in there:
            held = [each for each in there if each.startswith(f"{name}.of-")]
            if not held:
                return  # it was pruned
            source = held[0]
        try:
            store.get(source, target)
        except FileNotFoundError as error:
            if name == OPTIMIZER_FILE:
                return  # it was pruned just now
            raise CheckpointError(
                f"checkpoint {self._location} lacks {name}; name another checkpoint, or restore it from a "
                "backup"
            ) from error
        found = _sha256_of_file(target)
        if digest not in (None, found):
            target.unlink()
            raise CheckpointError(
                f"{self._location}/{name} is damaged in the store: its sha256 is {found}, expected {digest}; "
                "name another checkpoint, or restore it from a backup"
            )


def _digests(saved: bytes, location: str) -> dict[str, str | None]:
    """Return the recorded digest of each file of a checkpoint, by name, from its ``state.json``."""
    try:
        summary = json.loads(saved)
    except ValueError as error:
        raise CheckpointError(f"checkpoint {location}: unreadable {STATE_FILE}: {error}") from error
    found = summary.get("sha256") if isinstance(summary, dict) else None
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in found
    ):
        raise CheckpointError(f"checkpoint {location}: unreadable {STATE_FILE}: it names no files")
    if not {WEIGHTS_FILE, MODEL_WEIGHTS_FILE} & found.keys():
        raise CheckpointError(f"checkpoint {location}: {STATE_FILE} names no weights")
    return dict(found)


def _weights_in(digests: Mapping[str, str | None]) -> str:
    return MODEL_WEIGHTS_FILE if MODEL_WEIGHTS_FILE in digests else WEIGHTS_FILE


def _sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(location: str, name: str) -> str | None:
    """Return the digest of a file as it is now, in a directory or a store; ``None``: there is none.

    Raises:
        ConfigError: it cannot be such a location, as for all that is asked of one here.
        StoreError: it cannot be read.
    """
    checked_address(location, "checkpoint")
    if is_address(location):
        return Store(location).sha256(name)
    path = Path(location, name)
    try:
        return _sha256_of_file(path) if path.is_file() else None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error


def has_file(location: str, name: str | None = None) -> bool:
    """Tell whether a directory or a place in a store has a file, or any file at all."""
    checked_address(location, "checkpoint")
    if not is_address(location):
        return Path(location).is_dir() if name is None else Path(location, name).is_file()
    there = Store(location).names()
    return bool(there) if name is None else name in there


def hold_optimizer_state(location: str, run_id: str) -> None:
    """Give the optimizer state of a checkpoint a second name, under which it outlives its pruning.

    Raises:
        FileNotFoundError: it has been pruned.
        OSError: a directory that cannot be written.
        StoreError: a store that cannot.
    """
    checked_address(location, "checkpoint")
    second = f"{OPTIMIZER_FILE}.of-{path_part(run_id, 'run id')}"
    if is_address(location):
        Store(location).copy(OPTIMIZER_FILE, second)
        return
    state, held = Path(location, OPTIMIZER_FILE), Path(location, second)
    try:
        os.link(state, held)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(state, held)
