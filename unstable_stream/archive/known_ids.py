"""Recognise the ids of all archived events, in memory that does not grow with their number.

An id is known by 8 bytes, its hash. A hash that is known is a suspicion, to be looked up in the archive; one
that is not known proves the id new. The newest hashes are in memory, all others in sorted files beside the
archive, each at least twice as large as the next:

- ``archive.duckdb-ids/index.json``: which files, and up to which record they cover the archive;
- ``archive.duckdb-ids/*.hashes``: sorted unsigned integers of 8 bytes.

The files may be deleted at any time while no archiver runs: they are made anew from the table ``events``.
They are checked when they are opened, and not used if they are of another archive, of another copy of it, or
of another DuckDB, whose hash may differ.
"""

import contextlib
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import duckdb
import msgspec
import numpy as np
from numpy.typing import NDArray

from unstable_stream.errors import ArchiveError
from unstable_stream.events.id_sets import KeySet

_IN_MEMORY: Final = 1 << 18
"""Hashes, 2 MB of them. At a restart at most about so many ids are read from the archive."""
_PIECE: Final = 1 << 20
"""Hashes that a merge or a scan of the archive has in memory at once."""
_BYTES: Final = 8
_INDEX: Final = "index.json"


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    archive_id: str
    duckdb: str
    covers: int
    """All records with a smaller number are in the files; the last of them is an event."""
    last: int
    """The hash of this event's id. It tells copies of one archive apart that went on with other records."""
    files: list[str]


def ids_directory(archive: Path) -> Path:
    """Return the directory of the files for this archive."""
    return archive.with_name(f"{archive.name}-ids")


class KnownIds:
    """The hashes of the ids of all events in an archive. Threads may share it."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, archive: Path, archive_id: str) -> None:
        """Read what the files do not cover from the archive, which is held.

        Raises:
            ArchiveError: the files cannot be written.
        """
        # Of its own: a thread that holds the archive waits for it, and a holder never waits for the archive.
        self._lock = threading.Lock()
        self._directory = ids_directory(archive)
        self._archive_id = archive_id
        self._memory = KeySet[np.uint64]()
        self._files: list[_File] = []
        with _explained(self._directory):
            covers = self._open(connection)
        ((end,),) = connection.execute("SELECT next_record FROM schema_version").fetchall()
        for start in range(covers, end, _PIECE):
            stop = min(start + _PIECE, end)
            self.add(_hashes_of(connection, start, stop))
            self.settle(connection, stop)

    def contains(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return ``bool[n]``: which of ``hashes`` are known."""
        # In order, the searches of one file touch its pages one after the other.
        order = np.argsort(hashes)
        in_order = hashes[order]
        with self._lock, _explained(self._directory):
            found = self._memory.contains(hashes)
            for file in self._files:
                found[order] |= file.contains(in_order)
        return found

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add hashes, in memory."""
        with self._lock:
            self._memory.add(hashes)

    def settle(self, connection: duckdb.DuckDBPyConnection, stored: int) -> None:
        """Move what is in memory to files, if it is much.

        Args:
            connection: the archive.
            stored: every archived record with a smaller number has been added.

        Raises:
            ArchiveError: the files cannot be written.
        """
        with self._lock, _explained(self._directory):
            if len(self._memory) < _IN_MEMORY or not stored:
                return
            self._directory.mkdir(exist_ok=True)
            self._files.append(_write(self._directory, iter([self._memory.merged()])))
            while len(self._files) > 1 and self._files[-2].count < 2 * self._files[-1].count:
                larger, smaller = self._files[-2:]
                self._files[-2:] = [_write(self._directory, _merged(larger, smaller))]
                larger.close()
                smaller.close()
            self._memory = KeySet[np.uint64]()
            self._write_index(*_last_event(connection, stored))
            for file in self._directory.glob("*.hashes"):
                if file not in {kept.path for kept in self._files}:
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for file in self._files:
                file.close()

    def _open(self, connection: duckdb.DuckDBPyConnection) -> int:
        """Open the files if they are of this archive; return the number of the first record to add."""
        try:
            index = msgspec.json.decode((self._directory / _INDEX).read_bytes(), type=_Index)
        except (FileNotFoundError, msgspec.DecodeError):
            return 0
        if (index.archive_id, index.duckdb) != (self._archive_id, duckdb.__version__) or _hashes_of(
            connection, index.covers - 1, index.covers
        ).tolist() != [index.last]:
            return 0
        if not all((self._directory / name).is_file() for name in index.files):
            return 0
        self._files = [_File(self._directory / name) for name in index.files]
        return index.covers

    def _write_index(self, covers: int, last: int) -> None:
        names = [file.path.name for file in self._files]
        index = _Index(self._archive_id, duckdb.__version__, covers, last, names)
        partial = self._directory / f"{_INDEX}.{secrets.token_hex(4)}"
        with partial.open("wb") as out:
            out.write(msgspec.json.encode(index))
            _to_disk(out)
        partial.replace(self._directory / _INDEX)


class _File:
    """A file of sorted hashes; it stays readable if another process deletes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = path.open("rb")
        self.count = os.fstat(self._opened.fileno()).st_size // _BYTES

    def hashes(self) -> NDArray[np.uint64]:
        # Mapped anew each time, so that the pages that were read do not stay with this process.
        return np.memmap(self._opened, dtype=np.uint64, mode="r", shape=(self.count,))

    def contains(self, in_order: NDArray[np.uint64]) -> NDArray[np.bool_]:
        hashes = self.hashes()
        places = np.searchsorted(hashes, in_order)
        places[places == self.count] = 0
        return np.asarray(hashes[places] == in_order)

    def close(self) -> None:
        self._opened.close()


def _write(directory: Path, pieces: Iterator[NDArray[np.uint64]]) -> _File:
    path = directory / f"{secrets.token_hex(8)}.hashes"
    with path.open("wb") as out:
        for piece in pieces:
            out.write(piece.tobytes())
        _to_disk(out)
    return _File(path)


def _merged(larger: _File, smaller: _File) -> Iterator[NDArray[np.uint64]]:
    # Hashes are spread evenly, so an equal range of both files has about the same share of each.
    one, two = larger.hashes(), smaller.hashes()
    second = 0
    for first in range(0, len(one), _PIECE):
        piece = one[first : first + _PIECE]
        is_last = first + _PIECE >= len(one)
        until = len(two) if is_last else second + int(np.searchsorted(two[second:], piece[-1], side="right"))
        yield np.sort(np.concatenate((piece, two[second:until])), kind="stable")
        second = until


def _hashes_of(connection: duckdb.DuckDBPyConnection, start: int, stop: int) -> NDArray[np.uint64]:
    found = connection.execute(
        "SELECT hash(event_id) AS h FROM events "
        "WHERE record_number >= ? AND record_number < ? AND type IS NOT NULL",
        [start, stop],
    )
    return np.asarray(found.fetchnumpy()["h"], dtype=np.uint64)


def _last_event(connection: duckdb.DuckDBPyConnection, stored: int) -> tuple[int, int]:
    """Return the number after that of the last event, and the hash of its id."""
    (found,) = connection.execute(
        "SELECT max(record_number) + 1, arg_max(hash(event_id), record_number) FROM events "
        "WHERE record_number < ? AND type IS NOT NULL",
        [stored],
    ).fetchall()
    return found[0] or 0, found[1] or 0


def _to_disk(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArchiveError(
            f"cannot keep the ids of archived events in {directory}: {error}. Free the disk or let this user "
            "write there, then start the archiver again"
        ) from error
