"""The home of a run's checkpoints: a directory, or a place in a store. The two look alike to the learner.

A checkpoint that goes to a store is saved in this order; after a kill between any two steps nothing is
published:

1. write it into a directory of this host's cache, as anywhere
   (:mod:`unstable_stream.algorithms.learners.checkpoint`), and what the learner knew beside it;
2. upload every file under the name of this attempt, ``state.json`` last;
3. keep the directory in the cache, so that engines on this host need not fetch it;
4. publish the event with the address.

What is uploaded and never published is found by :meth:`StoredHome.attempts`, like a directory that is not.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from unstable_stream.algorithms.learners.checkpoint import (
    attempts,
    is_attempt,
    prune_optimizer_states,
    remove_attempts,
    saved_model,
)
from unstable_stream.console import get_logger
from unstable_stream.errors import StoreError
from unstable_stream.events import Checkpoint
from unstable_stream.log.stores.address import is_address, joined, name_of
from unstable_stream.log.stores.cache import HostCache
from unstable_stream.log.stores.checkpoint_files import FETCHED_TO_TRAIN, OPTIMIZER_FILE, STATE_FILE
from unstable_stream.log.stores.store import Store
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir

_KEPT_FOR_FORKS: Final = 10
"""The checkpoint of every update that is a multiple of this keeps its optimizer state."""

_logger = get_logger(__name__)


class DirectoryHome:
    """A directory that learner and engines share: on one machine, or on a shared disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def saving(self) -> Iterator[Path]:
        """Give the directory in which to make the directory of a new checkpoint."""
        yield self._root

    def publish(self, directory: Path) -> str:
        """Bring a saved checkpoint to its place, and return where it is: what the event says."""
        return str(directory)

    def attempts(self) -> list[str]:
        """Return the names of all saves here, published or not, finished or not."""
        return [path.name for path in attempts(self._root)]

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove attempts that can never be published; return those that are gone."""
        return [path.name for path in remove_attempts(self._root / name for name in names)]

    def prune(self, published: Sequence[str], *, keep_last: int) -> None:
        """Delete the optimizer states of all but the last of the published checkpoints, oldest first."""
        prune_optimizer_states([self._root / name for name in published], keep_last=keep_last)

    def read_note(self, name: str) -> str | None:
        """Return a note that is kept beside the checkpoints; ``None``: there is none."""
        path = self._root / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def write_note(self, name: str, text: str) -> None:
        """Keep a note beside the checkpoints."""
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
            self._store.put(path, f"{directory.name}/{path.name}")
        address = joined(self._store.address, directory.name)
        (directory / FETCHED_TO_TRAIN).touch()
        self._cache.keep(address, directory)
        return address

    def attempts(self) -> list[str]:
        names = {name.partition("/")[0] for name in self._store.names() if "/" in name}
        return sorted(name for name in names if is_attempt(name))

    def remove(self, names: Iterable[str]) -> list[str]:
        removed = list(names)
        for name in removed:
            for file in self._store.names(name):
                self._store.remove(file)
        return removed

    def prune(self, published: Sequence[str], *, keep_last: int) -> None:
        old = published[: max(0, len(published) - keep_last)]
        # One by one after an update; all at once after a restart, when there may be hundreds.
        there = self._store.names(old[0] if len(old) == 1 else "") if old else []
        for name in old:
            state = f"{name}/{OPTIMIZER_FILE}"
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


CheckpointHome: TypeAlias = DirectoryHome | StoredHome
"""Both have the same methods."""


def _held(state: str, there: Iterable[str]) -> list[str]:
    return [name for name in there if name.startswith(f"{state}.of-")]


def home_of(config: RunConfig, run_id: str, data: DataDir) -> CheckpointHome:
    """Return the home of a run's checkpoints: below ``learner.ckpt_root``, else in the data directory."""
    root = config.learner.ckpt_root
    if root is None:
        return DirectoryHome(data.checkpoints(run_id).absolute())
    location = joined(root, run_id)
    return StoredHome(location) if is_address(location) else DirectoryHome(Path(location))


class CheckpointTidier:
    """Deletes of one model's saves what nobody needs any more."""

    def __init__(self, home: CheckpointHome, keep: int | str, model: str | None) -> None:
        """``keep``: how many published checkpoints keep their optimizer states; a word: all of them."""
        self.home = home
        self._keep = keep
        self._model = model
        self._with_optimizer_state: list[str] = []
        """Names of published checkpoints that may still have theirs, oldest first."""
        self._leftovers: list[str] = []
        """Names of saves of earlier learners that no event names."""

    def begin(self, saves: Iterable[str], published: Mapping[int, str]) -> None:
        """Take in which saves there are, and the names of those that were published, by update.

        By name, because a data directory may have been moved since, or be reached by another path.
        """
        known = set(published.values())
        self._leftovers = [name for name in saves if name not in known and saved_model(name) == self._model]
        numbers = [number for number in sorted(published) if number % _KEPT_FOR_FORKS]
        self._with_optimizer_state = [published[number] for number in numbers]

    async def tidy(self, published: Checkpoint | None) -> None:
        """Delete; call it only after a transaction, which has published this checkpoint, if any.

        A run cannot be resumed from an unpublished checkpoint, so the states of older ones go only then. The
        leftovers were listed after this learner had fenced all earlier ones, and before it read which of them
        were published. That the transaction succeeded shows that no later learner had begun by then: so
        nobody has published them since, or can.
        """
        leftovers, self._leftovers = self._leftovers, []
        if published is not None and published.path is not None and published.iteration % _KEPT_FOR_FORKS:
            self._with_optimizer_state.append(name_of(published.path))
        try:
            removed = await asyncio.to_thread(self.home.remove, leftovers)
            if removed:
                _logger.info("unpublished checkpoints removed", directories=removed)
            if isinstance(self._keep, int):
                having = self._with_optimizer_state
                await asyncio.to_thread(self.home.prune, having, keep_last=self._keep)
                self._with_optimizer_state = having[-self._keep :]
        except StoreError as error:
            # What was published is safe. The rest is looked for again when the learner starts.
            _logger.warning("what is not needed any more was left in the store", reason=str(error))
