"""Keep what this host has fetched from stores: one directory, shared by its processes, of bounded size.

``$UNSTABLE_STREAM_CACHE``, by default ``~/.cache/unstable_stream``::

    checkpoints/KEY/files/…     a fetched directory; KEY is a digest of its address
    checkpoints/KEY/use         locked shared by each process that uses it, and exclusively to evict it
    checkpoints/KEY/fetch       locked exclusively by the one process that fetches into it
    checkpoints/.gone-KEY-WORD  what was evicted and could not be removed yet
    saving/WORD/…               what a learner of this host saves before it is in the store; WORD is random

Everything here may be deleted while nothing runs: it is fetched again. When the whole exceeds
``$UNSTABLE_STREAM_CACHE_GB`` (20), the directories that nobody uses go, the longest unused first. What is in
use stays, so the bound can be exceeded by that.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError, StoreError
from unstable_stream.log.stores.store import pause

CACHE: Final = "UNSTABLE_STREAM_CACHE"
CACHE_GB: Final = "UNSTABLE_STREAM_CACHE_GB"
_DEFAULT_GB: Final = 20.0
_GONE: Final = ".gone-"
_LOOKS_EVERY_S: Final = 0.05

_log = get_logger(__name__)


class HostCache:
    """The cache of this host."""

    def __init__(self, root: Path, *, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes

    @classmethod
    def of_host(cls) -> "HostCache":
        """Return the cache where the environment says.

        Raises:
            ConfigError: its size is no number.
        """
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        root = os.environ.get(CACHE) or Path(home, "unstable_stream")
        said = os.environ.get(CACHE_GB) or str(_DEFAULT_GB)
        try:
            size = float(said)
        except ValueError as error:
            raise ConfigError(f"{CACHE_GB}={said!r}: expected a number of gigabytes") from error
        return cls(Path(root).absolute(), max_bytes=int(size * 1e9))

    def directory(self, address: str) -> Path:
        """Return where the files of an address are, fetched or not: always the same."""
        return self._entry(address) / "files"

    @contextlib.contextmanager
    def fetched(
        self,
        address: str,
        is_whole: Callable[[Path], bool],
        fetch: Callable[[Path], None],
    ) -> Iterator[Path]:
        """Give the directory of an address, and keep it until the caller is done.

        Of several processes and threads that want it, one fetches and the others wait for it.

        Args:
            address: the address.
            is_whole: tells whether a directory has all that is wanted.
            fetch: puts what is missing into a directory.

        Raises:
            StoreError: the cache cannot be written.
        """
        with self._in_use(address) as files:
            if not is_whole(files):
                with _locked(files.parent / "fetch", fcntl.LOCK_EX):
                    if not is_whole(files):
                        self._fill(files, fetch)
                self.evict()
            os.utime(files.parent / "use")
            yield files

    def keep(self, address: str, directory: Path) -> None:
        """Take over a directory that is at this address now; it must be on the cache's file system."""
        with self._in_use(address) as files, _locked(files.parent / "fetch", fcntl.LOCK_EX):
            shutil.rmtree(files)
            directory.rename(files)
        self.evict()

    @contextlib.contextmanager
    def saving(self) -> Iterator[Path]:
        """Give a new directory for what is on its way to a store; remove it then, and those of the dead."""
        parent = self.root / "saving"
        with contextlib.ExitStack() as held:
            try:
                parent.mkdir(parents=True, exist_ok=True)
                for left in parent.iterdir():
                    with (
                        contextlib.suppress(BlockingIOError, FileNotFoundError, NotADirectoryError),
                        _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB, create=False),
                    ):
                        shutil.rmtree(left, ignore_errors=True)
                made = self._lock_new(parent, held)
            except OSError as error:
                raise self._unwritable(error) from error
            held.callback(shutil.rmtree, made, ignore_errors=True)
            yield made

    @staticmethod
    def _lock_new(parent: Path, held: contextlib.ExitStack) -> Path:
        while True:
            made = parent / secrets.token_hex(8)
            made.mkdir()
            try:
                held.enter_context(_locked(made, fcntl.LOCK_EX, create=False))
            except FileNotFoundError:
                continue  # another process took it for one of a dead process
            return made

    def evict(self) -> list[Path]:
        """Remove what nobody uses, the longest unused first, until the rest is within the bound."""
        # What an eviction left that was killed or refused goes first; what stays of it takes up room too.
        stays = sum(_remove(left) for left in self._directories() if left.name.startswith(_GONE))
        entries = []
        for entry in (each for each in self._directories() if not each.name.startswith(_GONE)):
            with contextlib.suppress(FileNotFoundError):
                entries.append(((entry / "use").stat().st_mtime_ns, _bytes_of(entry), entry))
        size = stays + sum(each for _, each, _ in entries)
        removed = []
        for _, each, entry in sorted(entries):
            if size <= self.max_bytes:
                break
            with (
                contextlib.suppress(BlockingIOError, FileNotFoundError),
                _locked(entry / "use", fcntl.LOCK_EX | fcntl.LOCK_NB, create=False),
            ):
                # Out of sight first: whoever waits for this lock looks whether it is still the entry's.
                aside = entry.with_name(f"{_GONE}{entry.name}-{secrets.token_hex(4)}")
                entry.rename(aside)
                removed.append(entry)
                size += _remove(aside) - each
        if removed:
            _log.info("fetched files removed from the cache", directories=len(removed), cache=str(self.root))
        return removed

    def _directories(self) -> list[Path]:
        parent = self.root / "checkpoints"
        return [each for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []

    def _entry(self, address: str) -> Path:
        return self.root / "checkpoints" / hashlib.sha256(address.encode()).hexdigest()[:32]

    @contextlib.contextmanager
    def _in_use(self, address: str) -> Iterator[Path]:
        entry = self._entry(address)
        with contextlib.ExitStack() as held:
            tries = 1000
            while True:
                try:
                    (entry / "files").mkdir(parents=True, exist_ok=True)
                    held.enter_context(_locked(entry / "use", fcntl.LOCK_SH))
                except OSError as error:
                    tries -= 1
                    if tries and isinstance(error, FileNotFoundError | FileExistsError):
                        continue  # evicted between the two
                    raise self._unwritable(error) from error
                if (entry / "files").is_dir():
                    break
                held.close()
            yield entry / "files"

    def _fill(self, files: Path, fetch: Callable[[Path], None]) -> None:
        try:
            fetch(files)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> StoreError:
        return StoreError(
            f"the cache {self.root} cannot be written: {error}; free space there, or name another directory "
            f"of this host with {CACHE}"
        )


def _remove(directory: Path) -> int:
    """Remove a directory, and return the bytes of what could not be removed."""
    refused: list[OSError] = []

    def note(_: object, path: str, why: tuple[type[BaseException], BaseException, object]) -> None:
        error = why[1]
        # Another process of this host may be removing the same.
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            refused.append(error)

    shutil.rmtree(directory, onerror=note)
    if not refused:
        return 0
    stays = _bytes_of(directory)
    _log.warning("files stay in the cache", directory=str(directory), bytes=stays, reason=str(refused[0]))
    return stays


def _bytes_of(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


@contextlib.contextmanager
def _locked(path: Path, how: int, *, create: bool = True) -> Iterator[None]:
    """Hold a lock that is still that of ``path`` when it is held.

    Looks again and again rather than sleep in the kernel: a thread that does could not be ended.
    """
    waits = not how & fcntl.LOCK_NB
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT if create else os.O_RDONLY, 0o666)
        try:
            while True:
                try:
                    fcntl.flock(handle, how | fcntl.LOCK_NB)
                except BlockingIOError:
                    if not waits:
                        raise
                    pause(_LOOKS_EVERY_S)
                else:
                    break
            if not _is_still(path, handle):
                continue
            yield
            return
        finally:
            os.close(handle)


def _is_still(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
