"""Keep what this host has fetched from stores: one directory, shared by its processes, of bounded size.

``$UNSTABLE_STREAM_CACHE``, by default ``~/.cache/unstable_stream``::

    checkpoints/KEY/files/…     a fetched directory; KEY is a digest of its address
    checkpoints/KEY/use         locked shared by each process that uses it, and exclusively to evict it
    checkpoints/KEY/fetch       locked exclusively by the one process that fetches into it
    saving/WORD/…               what a learner of this host saves before it is in the store; WORD is random
    lock                        locked exclusively to begin to use something, and to evict

Everything here may be deleted while nothing runs: it is fetched again. When the whole exceeds
``$UNSTABLE_STREAM_CACHE_GB`` (20), the directories that nobody uses go, the longest unused first. What is in
use stays, so the bound can be exceeded by that.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError, StoreError
from unstable_stream.log.stores.store import pause

CACHE: Final = "UNSTABLE_STREAM_CACHE"
CACHE_GB: Final = "UNSTABLE_STREAM_CACHE_GB"
_DEFAULT_GB: Final = 20.0
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
        self, address: str, is_whole: Callable[[Path], bool], fetch: Callable[[Path], None]
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
                with _locked(files.parent / "fetch", fcntl.LOCK_EX), self._writing():
                    if not is_whole(files):
                        fetch(files)
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
            with self._alone():
                parent.mkdir(exist_ok=True)
                for left in parent.iterdir():
                    with (
                        contextlib.suppress(BlockingIOError, FileNotFoundError, NotADirectoryError),
                        _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB, os.O_RDONLY),
                    ):
                        shutil.rmtree(left, ignore_errors=True)
                made = Path(tempfile.mkdtemp(dir=parent))
                held.enter_context(_locked(made, fcntl.LOCK_EX, os.O_RDONLY))
            held.callback(shutil.rmtree, made, ignore_errors=True)
            yield made

    def evict(self) -> int:
        """Remove what nobody uses, the longest unused first, until the rest is within the bound.

        Returns the number of directories. What cannot be removed is counted, and tried, again the next time.
        """
        parent = self.root / "checkpoints"
        removed = 0
        with self._alone():
            entries = [(_used_ns(entry), _bytes_of(entry), entry) for entry in parent.glob("*")]
            size = sum(each for _, each, _ in entries)
            for _, each, entry in sorted(entries):
                if size <= self.max_bytes:
                    break
                with (
                    contextlib.suppress(BlockingIOError),
                    _locked(entry / "use", fcntl.LOCK_EX | fcntl.LOCK_NB),
                ):
                    shutil.rmtree(entry, ignore_errors=True)
                    removed += 1
                    size -= each
        if removed:
            _log.info("fetched files removed from the cache", directories=removed, cache=str(self.root))
        return removed

    def _entry(self, address: str) -> Path:
        return self.root / "checkpoints" / hashlib.sha256(address.encode()).hexdigest()[:32]

    @contextlib.contextmanager
    def _in_use(self, address: str) -> Iterator[Path]:
        entry = self._entry(address)
        with contextlib.ExitStack() as held:
            with self._alone():
                (entry / "files").mkdir(parents=True, exist_ok=True)
                held.enter_context(_locked(entry / "use", fcntl.LOCK_SH))
            yield entry / "files"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let no other process or thread begin to use something, or evict."""
        with self._writing():
            self.root.mkdir(parents=True, exist_ok=True)
            with _locked(self.root / "lock", fcntl.LOCK_EX):
                yield

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:  # of what is fetched
            raise
        except OSError as error:
            raise StoreError(
                f"the cache {self.root} cannot be written: {error}; free space there, or name another "
                f"directory of this host with {CACHE}"
            ) from error


def _used_ns(entry: Path) -> int:
    try:
        return (entry / "use").stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _bytes_of(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return total


@contextlib.contextmanager
def _locked(path: Path, how: int, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[None]:
    """Hold a lock of a file, by default one that is made where there is none.

    Looks again and again rather than sleep in the kernel: a thread that does could not be ended.
    """
    handle = os.open(path, flags, 0o666)
    try:
        while True:
            try:
                fcntl.flock(handle, how | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if how & fcntl.LOCK_NB:
                    raise
            pause(_LOOKS_EVERY_S)
        yield
    finally:
        os.close(handle)
