"""Read a fixed set of files through fsspec, by name: nothing else can be opened, and nothing written.

What reads files by fsspec reads these: DuckDB does, without an extension for the store that they are in.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import fsspec

PROTOCOL: Final = "snapshot"
"""The addresses of the files are ``snapshot://NAME``."""
_NEVER_CHANGED: Final = datetime(2000, 1, 1, tzinfo=UTC)


class SnapshotFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of one snapshot. They never change, so whatever was read of one may be kept."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, sizes: Mapping[str, int], opened: Callable[[str], BinaryIO]) -> None:
        """Take the files.

        Args:
            sizes: name to bytes.
            opened: opens a file by its name; it may be called by many threads.
        """
        super().__init__()
        self._sizes = sizes
        self._opened = opened

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix(f"{PROTOCOL}://")

    # ``Any``: fsspec's signatures.
    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name and size.

        Raises:
            FileNotFoundError: it is none of the files.
        """
        name = self._strip_protocol(path)
        if name not in self._sizes:
            raise FileNotFoundError(path)
        return {"name": name, "size": self._sizes[name], "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the one file of this name: names are not patterns."""
        name = self._strip_protocol(path)
        return [name] if name in self._sizes else []

    def modified(self, path: str) -> datetime:
        """Return the same time always."""
        return _NEVER_CHANGED

    def open(self, path: str, mode: str = "rb", **_: Any) -> "_SharedHandle":
        """Open one of the files to read.

        Raises:
            PermissionError: to write.
            FileNotFoundError: it is none of the files.
        """
        if mode != "rb":
            raise PermissionError(f"{path} is part of a snapshot, which can only be read")
        name = self._strip_protocol(path)
        size: int = self.info(path)["size"]
        return _SharedHandle(self._opened(name), size)


class _SharedHandle:
    """An open file in which each thread has a position of its own: DuckDB's threads share one handle."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._lock = threading.Lock()
        self._here = threading.local()

    def tell(self) -> int:
        return getattr(self._here, "offset", 0)

    def seek(self, offset: int, whence: int = 0) -> int:
        start = (0, self.tell(), self._size)[whence]
        self._here.offset = start + offset
        return self.tell()

    def read(self, size: int = -1) -> bytes:
        offset = self.tell()
        left = max(0, self._size - offset)
        with self._lock:
            self._file.seek(offset)
            data = self._file.read(left if size < 0 else min(size, left))
        self._here.offset = offset + len(data)
        return data

    def close(self) -> None:
        self._file.close()
