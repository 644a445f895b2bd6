"""The home of a run's checkpoints: a directory, or a place in a store. The two look alike to the learner.

A checkpoint that goes to a store is saved in this order; after a kill between any two steps nothing is
published:

1. write it into a directory of this host's cache, as anywhere
   (:mod:`unstable_stream.learners.checkpoint`), and what the learner knew beside it;
2. upload every file under the name of this attempt, ``state.json`` last;
3. keep the directory in the cache, so that engines on this host need not fetch it;
4. publish the event with the address.

What is uploaded and never published is found by :meth:`StoredHome.attempts`, like a directory that is not.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from unstable_stream.learners import attempts, is_attempt, prune_optimizer_states, remove_attempts
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.stores import HostCache, Store, is_address, joined
from unstable_stream.stores.checkpoint_files import FETCHED_TO_TRAIN, OPTIMIZER_FILE, STATE_FILE

__all__ = ["CheckpointHome", "DirectoryHome", "StoredHome", "home_of"]


class CheckpointHome(Protocol):
    """The place, as the learner needs it."""

    def saving(self) -> AbstractContextManager[Path]:
        """Give the directory in which to make the directory of a new checkpoint."""

    def publish(self, directory: Path) -> str:
        """Bring a saved checkpoint to its place, and return where it is: what the event says."""

    def attempts(self) -> list[str]:
        """Return the names of all saves here, published or not, finished or not."""

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove attempts that can never be published; return those that are gone."""

    def prune(self, published: Sequence[str], *, keep_last: int) -> None:
        """Delete the optimizer states of all but the last of the published checkpoints, oldest first."""

    def read_note(self, name: str) -> str | None:
        """Return a note that is kept beside the checkpoints; ``None``: there is none."""

    def write_note(self, name: str, text: str) -> None:
        """Keep a note beside the checkpoints."""


class DirectoryHome:
    """A directory that learner and engines share: on one machine, or on a shared disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def saving(self) -> Iterator[Path]:
        yield self._root

    def publish(self, directory: Path) -> str:
        return str(directory)

    def attempts(self) -> list[str]:
        return [path.name for path in attempts(self._root)]

    def remove(self, names: Iterable[str]) -> list[str]:
        return [path.name for path in remove_attempts(self._root / name for name in names)]

    def prune(self, published: Sequence[str], *, keep_last: int) -> None:
        prune_optimizer_states([self._root / name for name in published], keep_last=keep_last)

    def read_note(self, name: str) -> str | None:
        path = self._root / name
        if path.is_file():
            return path.read_text(encoding="utf-8")
        return None

    def write_note(self, name: str, text: str) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        staging = self._root / f".tmp-{name}"
        staging.write_text(text, encoding="utf-8")
        staging.replace(self._root / name)


class StoredHome:
    """A place in a store, for machines that share no disk."""

    def __init__(self, address: str, cache: HostCache | None = None) -> None:
        """Raises :class:`ConfigError`: there is no such kind of store here."""
        self._store = Store(address)
        self._cache = cache or HostCache.of_host()

    @contextlib.contextmanager
    def saving(self) -> Iterator[Path]:
        with self._cache.saving() as directory:
            yield directory

    def publish(self, directory: Path) -> str:
        files = sorted(path for path in directory.iterdir() if path.is_file())
        for path in sorted(files, key=lambda each: each.name == STATE_FILE):
            self._store.put(path, joined_name(directory.name, path.name))
        address = joined(self._store.address, directory.name)
        (directory / FETCHED_TO_TRAIN).touch()
        self._cache.keep(address, directory)
        return address

    def attempts(self) -> list[str]:
        names = {name.partition("/")[0] for name in self._store.names() if "/" in name}
        return sorted(name for name in names if is_attempt(name))

    def remove(self, names: Iterable[str]) -> list[str]:
        removed = []
        for name in names:
            for file in self._store.names(name):
                self._store.remove(file)
            removed.append(name)
        return removed

    def prune(self, published: Sequence[str], *, keep_last: int) -> None:
        old = published[: max(0, len(published) - keep_last)]
        # One by one after an update; all at once after a restart, when there may be hundreds.
        there = (
            self._store.names()
            if len(old) > 1
            else [each for name in old for each in self._store.names(name)]
        )
        for name in old:
            state = joined_name(name, OPTIMIZER_FILE)
            if state not in there or _held(state, there):
                continue
            self._store.remove(state)
            # A fork that came between has given it its second name by now.
            if held := _held(state, self._store.names(name)):
                self._store.copy(held[0], state)

    def read_note(self, name: str) -> str | None:
        content = self._store.read(name)
        return None if content is None else content.decode()

    def write_note(self, name: str, text: str) -> None:
        self._store.write(name, text.encode())


def joined_name(directory: str, file: str) -> str:
    """Return the name of a file in a directory of a store."""
    return f"{directory}/{file}"


def _held(state: str, there: Iterable[str]) -> list[str]:
    return [name for name in there if name.startswith(f"{state}.of-")]


def home_of(config: RunConfig, run_id: str, data: DataDir) -> CheckpointHome:
    """Return the home of a run's checkpoints: below ``learner.ckpt_root``, else in the data directory."""
    root = config.learner.ckpt_root
    if root is None:
        return DirectoryHome(data.checkpoints(run_id).absolute())
    location = joined(root, run_id)
    return StoredHome(location) if is_address(location) else DirectoryHome(Path(location))
