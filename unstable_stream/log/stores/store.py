"""One place in a store: read and write whole files there, and wait for a store that is away.

Only this module makes clients of fsspec, and only for addresses that
:func:`~unstable_stream.log.stores.address.checked_address` accepts: fsspec itself knows ``memory`` and
``file``, s3fs adds ``s3``, gcsfs ``gs``, adlfs ``abfs``. Credentials, endpoint and region are found where the
store's own client looks for them; nothing of them is ever recorded.

What passes (no connection, no answer, an answer 5xx or 429) is tried again with growing pauses until
``patience_s`` is over. What lasts (no such bucket, no permission) is an error at once.
"""

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError, StoreError, StoreUnavailableError
from unstable_stream.log.stores.address import checked_address

T = TypeVar("T")

PATIENCE_S: Final = 300.0
"""Longer than a store's restart or a failover takes, shorter than anybody should wait for a mistyped name."""
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_TOLD_EVERY_S: Final = 30.0
_SILENT_S: Final = 60.0
"""Seconds without a word from a store after which a request has failed. Clients begin to count when they have
sent a request. What is sent first, and waits to be taken, is therefore bounded here, by its size.
"""
_SLOWEST_BYTES_PER_S: Final = 250_000
"""A write that takes longer would not end within the patience of those who use it, for what they write."""
_PIECE_BYTES: Final = 1 << 22
_PACKAGES: Final = {
    "s3": "unstable_stream[s3]",
    "s3a": "unstable_stream[s3]",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
}
"""The package to install, by the first part of an address."""
_LASTING: Final = {
    *("EACCES", "EDQUOT", "EEXIST", "EINVAL", "EISDIR", "EMSGSIZE", "ENAMETOOLONG", "ENOENT", "ENOSPC"),
    *("ENOSYS", "ENOTDIR", "ENOTEMPTY", "EPERM", "EREMCHG", "EROFS"),
}
"""Names of numbers of errors of the operating system that do not pass."""
_NO_ROOM: Final = {"EDQUOT", "EFBIG", "ENOSPC", "EROFS"}
_PASSING_KINDS: Final = frozenset(
    {
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",  # aiohttp
        "ConnectionError",  # botocore, requests
        "HTTPClientError",  # botocore
        "IncompleteReadError",  # botocore
        "ResponseParserError",  # botocore, of an answer cut short
        "ServiceRequestError",  # azure
        "ServiceResponseError",  # azure
        "TransportError",  # google
    }
)
"""Names of errors that are no ``OSError``, in packages that need not be installed."""

_log = get_logger(__name__)
_ends: ContextVar[threading.Event | None] = ContextVar("waiting_until", default=None)
_waiting: Final[dict[int, float]] = {}
"""By thread that waits for a store, since when (monotonic)."""


def store_wait_s() -> float:
    """Return the seconds that the longest waiting thread of this process has waited for a store; 0: none."""
    began = min(_waiting.copy().values(), default=None)
    return 0.0 if began is None else time.monotonic() - began


class ThisHostError(OSError):
    """A file of this host could not be read or written; the store has no part in it."""


@contextmanager
def waiting_until(ends: threading.Event) -> Iterator[None]:
    """Let this thread's waits, for a store or for another process, end with an error once ``ends`` is set."""
    token = _ends.set(ends)
    try:
        yield
    finally:
        _ends.reset(token)


def pause(seconds: float) -> None:
    """Wait; raises :class:`StoreUnavailableError` if nobody wants any more what this thread waits for."""
    ends = _ends.get()
    if ends is None:
        time.sleep(seconds)
    elif ends.wait(seconds):
        raise StoreUnavailableError("given up: who waited for it has closed")


def is_passing(error: BaseException) -> bool:
    """Tell whether a store may answer the same request later."""
    status = _status(error)
    if status is not None:
        return status >= 500 or status in (408, 429)
    if isinstance(error, FileNotFoundError | PermissionError | FileExistsError | IsADirectoryError):
        return False
    if isinstance(error, OSError):
        return _name(error) not in _LASTING
    return any(kind.__name__ in _PASSING_KINDS for kind in type(error).__mro__)


def _name(error: OSError) -> str:
    """Return the name of an error's number, e.g. ``ENOSPC``."""
    return errno.errorcode.get(error.errno or 0, "")


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error carries, by any of the clients' names for it."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):  # botocore
        answer = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return answer if isinstance(answer, int) else None
    for name in ("status", "code", "status_code"):
        found = getattr(error, name, None)
        if isinstance(found, int) and found >= 100:
            return found
    return None


class Store:
    """The files below one address. Names are relative to it, with ``/`` between their parts.

    Every method may raise :class:`~unstable_stream.errors.StoreUnavailableError`, when the store was away for
    longer than ``patience_s``, and :class:`~unstable_stream.errors.StoreError`, when it refuses.
    """

    def __init__(self, address: str, *, patience_s: float = PATIENCE_S) -> None:
        """Find the client of the store; nothing is asked of the store yet.

        Raises:
            ConfigError: the address is refused (:func:`checked_address`), or the store's client is not
                installed.
            StoreUnavailableError: the client wants to reach the store at once, and cannot.
        """
        checked_address(address, "store")
        self.address = address.rstrip("/")
        self._patience_s = patience_s
        self._files, self._root = _client(self.address)

    def put(self, file: Path, name: str) -> None:
        """Copy a file into the store. It appears there whole or not at all.

        Raises:
            ThisHostError: the file cannot be read.
        """

        try:
            file.open("rb").close()
        except OSError as error:
            raise _of_this_host(error) from error
        bound = self._bound(file.stat().st_size)
        self._call(f"write {name}", lambda: self._files.put_file(str(file), self._path(name), **bound))
        found = self._call(f"look at {name}", lambda: self._files.info(self._path(name))["size"])
        if found != file.stat().st_size:
            raise StoreError(
                f"{self.address}/{name} has {found} bytes after {file.stat().st_size} were written: "
                "the store does not keep what it is given"
            )

    def get(self, name: str, target: Path) -> None:
        """Copy a file of the store to ``target``, beside which it is written first.

        Raises:
            FileNotFoundError: there is none of this name.
            ThisHostError: it cannot be written here.
        """
        partial = target.with_name(f".part-{os.getpid()}-{threading.get_ident()}-{target.name}")

        def get() -> None:
            try:
                self._files.get_file(self._path(name), str(partial))
            except OSError as error:
                # Reading fills no disk but this host's; what is written to is named in the error otherwise.
                if _name(error) in _NO_ROOM or error.filename in (str(partial), str(partial.parent)):
                    raise _of_this_host(error) from error
                raise

        try:
            self._call(f"read {name}", get)
            partial.rename(target)
        finally:
            with suppress(NotADirectoryError):
                partial.unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; ``None``: there is none of this name."""
        try:
            content: bytes = self._call(f"read {name}", lambda: self._files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, whole or not at all."""
        bound = self._bound(len(content))
        self._call(f"write {name}", lambda: self._files.pipe_file(self._path(name), content, **bound))

    def sha256(self, name: str) -> str | None:
        """Return the digest of a file as the store has it now; ``None``: there is none of this name."""

        def digest() -> str:
            found = hashlib.sha256()
            with self._files.open(self._path(name), "rb", cache_type="readahead") as file:
                while piece := file.read(_PIECE_BYTES):
                    found.update(piece)
            return found.hexdigest()

        try:
            return self._call(f"read {name}", digest)
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Tell whether there is a file of this name."""
        return name in self.names(name.rpartition("/")[0])

    def names(self, directory: str = "") -> list[str]:
        """Return the names of all files below a directory; empty if there is none."""
        path = self._path(directory) if directory else self._root

        def find() -> list[str]:
            try:
                return list(self._files.find(path))
            except FileNotFoundError:
                return []

        start = f"{self._root.rstrip('/')}/"
        found: list[str] = self._call(f"list {directory or 'files'}", find)
        return sorted(each.removeprefix(start) for each in found if each.startswith(f"{path.rstrip('/')}/"))

    def copy(self, name: str, second: str) -> None:
        """Give a file a second name, without carrying it over here.

        Raises:
            FileNotFoundError: there is none of this name.
        """
        source, target = self._path(name), self._path(second)
        self._call(f"copy {name}", lambda: self._files.cp_file(source, target))

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""

        def rm() -> None:
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                return

        self._call(f"remove {name}", rm)

    def check_writable(self) -> None:
        """Write a small file and remove it again."""
        name = f".written-by-{os.getpid()}"
        self.write(name, b"unstable_stream was here")
        self.remove(name)

    def _bound(self, size: int) -> dict[str, float]:
        """Return how long a write of so many bytes may take, as fsspec's clients of a network take it.

        A store that vanishes, or falls silent, leaves a write that was begun without an end otherwise.
        """
        return {"timeout": _SILENT_S + size / _SLOWEST_BYTES_PER_S} if self._files.async_impl else {}

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _call(self, what: str, request: Callable[[], T]) -> T:
        """Return what ``request`` returns; make it again while it fails in a way that passes."""
        thread, began = threading.get_ident(), time.monotonic()
        pause_s, told_s = _FIRST_PAUSE_S, 0.0
        try:
            while True:
                try:
                    found = request()
                except (FileNotFoundError, ThisHostError) as error:
                    if what.startswith("write") and not isinstance(error, ThisHostError):
                        raise StoreError(
                            f"{self.address}: could not {what}: no such place: {error}"
                        ) from error
                    raise
                except Exception as error:
                    waited_s = time.monotonic() - began
                    if not is_passing(error):
                        raise self._refusal(what, error) from error
                    # fsspec's own time-out has no words.
                    reason = f"{type(error).__name__}: {str(error) or 'no answer'}"
                    if waited_s + pause_s > self._patience_s:
                        raise StoreUnavailableError(
                            f"{self.address} could not be reached for {waited_s:.0f} s, to {what}: {reason}. "
                            "Nothing that was published is lost; see that the store is up and reachable from "
                            "this host"
                        ) from error
                    if waited_s >= told_s:
                        told = {"store": self.address, "wanted": what, "waited_s": round(waited_s)}
                        _log.warning("waiting for the store", reason=reason, **told)
                        told_s = waited_s + _TOLD_EVERY_S if waited_s else _LONGEST_PAUSE_S
                    _waiting[thread] = began
                    pause(pause_s)
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
                else:
                    if pause_s > _FIRST_PAUSE_S:
                        waited_s = time.monotonic() - began
                        _log.warning("the store answers again", store=self.address, waited_s=round(waited_s))
                    return found
        finally:
            _waiting.pop(thread, None)

    def _refusal(self, what: str, error: Exception) -> Exception:
        if isinstance(error, PermissionError) or type(error).__name__.endswith("CredentialsError"):
            return StoreError(
                f"{self.address}: could not {what}, permission denied: {error}. Credentials come from the "
                "environment of this process or the files that the store's client reads"
            )
        if isinstance(error, OSError) or _status(error) is not None:
            return StoreError(f"{self.address}: could not {what}: {type(error).__name__}: {error}")
        return error


def _of_this_host(error: OSError) -> ThisHostError:
    return ThisHostError(error.errno, error.strerror or str(error), error.filename)


def _client(address: str) -> tuple[Any, str]:  # fsspec has no types
    """Return the client of a store, and the address as the client writes it."""
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(f"{address}: stores are read with fsspec: pip install fsspec") from error
    kind = address.partition("://")[0]
    # Listings are asked for anew each time: other processes write too.
    settings: dict[str, Any] = {"use_listings_cache": False}
    if kind in ("file", "local"):
        settings["auto_mkdir"] = True
    elif kind in ("s3", "s3a"):
        # The tries are counted here, where they are told of: the clients would try in silence for a minute.
        said = fsspec.config.conf.get("s3", {})
        settings["config_kwargs"] = {
            "retries": {"max_attempts": 1},
            "connect_timeout": 10,
            "read_timeout": _SILENT_S,
        } | said.get("config_kwargs", {})
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint and "endpoint_url" not in said:
            settings["endpoint_url"] = endpoint  # the client looks there too, but once and for all
    try:
        files, root = fsspec.core.url_to_fs(address, **settings)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{address}: no store of kind {kind!r} is known here ({error}): pip install "
            f"'{_PACKAGES.get(kind, 'fsspec')}'"
        ) from error
    except OSError as error:
        raise StoreUnavailableError(f"{address} could not be reached: {error}") from error
    if kind in ("s3", "s3a"):
        files.retries = 1
    return files, root
