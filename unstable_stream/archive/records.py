"""Read the archive's raw records in offset order, in pieces, and let the writer in between two pieces."""

import contextlib
import threading
import time
from typing import Any, Final

import duckdb
import msgspec

from unstable_stream.archive.opening import open_archive
from unstable_stream.archive.store import unreadable
from unstable_stream.errors import ArchiveError
from unstable_stream.log.port import StoredRecord
from unstable_stream.log.records import event_headers
from unstable_stream.log.stores.archive_address import ArchiveAddress, is_shared

# Reading and writing exclude each other in DuckDB, and opening costs about 50 ms. So a reader keeps the file
# for several pieces, lets go after this long whatever its caller does, and stays away for as long as a writer
# needs to notice.
_LONGEST_HOLD_S: Final = 1.0
_WRITERS_TURN_S: Final = 0.03


class _HeadFields(msgspec.Struct, tag_field=None):
    """The fields of an event that its headers repeat."""

    type: str
    event_id: str
    run_id: str
    occurred_at_ms: int
    schema_version: int = 1


_head_decoder: Final = msgspec.json.Decoder(_HeadFields)


class RecordReader:
    """Reads the records of one log; blocking."""

    def __init__(self, path: ArchiveAddress, log_id: str | None = None) -> None:
        """Look into the archive.

        Args:
            path: the file.
            log_id: the log; one the archive does not know has no records. ``None``: the only one there is.

        Raises:
            ArchiveBusyError: another process held it past the deadline.
            ArchiveError: there is no archive, or it holds several logs and none was named.
        """
        self.path = path
        # Guards what follows against the timer that closes it.
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._opened = contextlib.ExitStack()
        self._timer = threading.Timer(0, self.release)
        self._closed_at = 0.0
        self._numbers: dict[tuple[str, int], tuple[int, int]] = {}
        try:
            with self._lock:
                found = self._hold().execute("SELECT DISTINCT log_id FROM positions").fetchall()
        finally:
            self.release()
        known = sorted(row[0] for row in found)
        if log_id is None and len(known) > 1:
            raise ArchiveError(
                f"the archive {path} holds the records of {len(known)} logs, choose one with --log-id: "
                + ", ".join(known)
            )
        self.log_id: str = log_id if log_id is not None else known[0] if known else ""

    def ends(self) -> dict[tuple[str, int], int]:
        """(topic, partition) to the offset after the last archived."""
        rows = self._query("""SELECT topic, "partition", next_offset FROM positions WHERE log_id = $log""")
        return {(topic, partition): end for topic, partition, end in rows}

    def missing(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """(topic, partition) to the offsets that the log deleted before they were archived, in order.

        Each range is the first missing offset and the one after the last.
        """
        found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for topic, partition, first, end in self._query(
            """SELECT topic, "partition", first_offset, next_offset FROM missing_records
                WHERE log_id = $log ORDER BY ALL""",
        ):
            found.setdefault((topic, partition), []).append((first, end))
        return found

    def read(self, topic: str, partition: int, start: int, end: int, limit: int = 2000) -> list[StoredRecord]:
        """Return the next records with offsets from ``start`` to before ``end``, in order; empty at the end.

        There are at most ``limit``, and fewer where offsets are missing between them.
        """
        columns = '"offset", key, coalesce(encode(value), value_bytes), headers, timestamp_ms, type'
        piece = 'AND "offset" >= $start AND "offset" < $stop'
        while start < end:
            # By offsets, not by LIMIT: sorting only what is wanted is several times as fast.
            stop = min(start + limit, end)
            rows = self._of(
                columns, topic, partition, piece, 'ORDER BY "offset"', start, stop, start=start, stop=stop
            )
            if rows:
                return [
                    StoredRecord(
                        topic,
                        partition,
                        offset,
                        key,
                        value,
                        (_standard_headers(value) if kind is not None else {}) | (others or {}),
                        time_ms,
                    )
                    for offset, key, value, others, time_ms, kind in rows
                ]
            behind = 'AND "offset" >= $stop'
            ((found,),) = self._of('min("offset")', topic, partition, behind, first=stop, stop=stop)
            if found is None:
                return []
            start = found
        return []

    def _of(
        self,
        columns: str,
        topic: str,
        partition: int,
        condition: str = "",
        order: str = "",
        first: int = 0,
        last: int | None = None,
        **given: object,
    ) -> list[Any]:
        """Select from the records of a partition, with offsets from ``first`` to before ``last``."""
        return self._query(
            f"""SELECT {columns} FROM events
                WHERE log_id = $log AND topic = $topic AND "partition" = $partition {condition}
                    {self._numbered(topic, partition, first, last)}
                {order}""",
            topic=topic,
            partition=partition,
            **given,
        )

    def _numbered(self, topic: str, partition: int, start: int, stop: int | None = None) -> str:
        """Return a condition by which a reader of a shared archive passes over files and parts of files: they
        are sorted by record number.
        """
        if not is_shared(self.path):
            return ""
        if (topic, partition) not in self._numbers:
            rows = self._query(
                'SELECT topic, "partition", first_number, end_number FROM partition_numbers '
                "WHERE log_id = $log"
            )
            self._numbers = {(of_topic, number): (first, end) for of_topic, number, first, end in rows}
        if (topic, partition) not in self._numbers:
            return ""
        first, end = self._numbers[topic, partition]
        end = end if stop is None else first + stop
        return f"AND record_number >= {first + start} AND record_number < {end}"

    def release(self) -> None:
        """Let go of the file; the next call takes it again."""
        with self._lock:
            if self._connection is not None:
                self._timer.cancel()
                self._opened.close()
                self._connection = None
                self._closed_at = time.monotonic()

    def _hold(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            time.sleep(max(0.0, self._closed_at + _WRITERS_TURN_S - time.monotonic()))
            opened = open_archive(self.path, records_only=True)
            self._connection = self._opened.enter_context(opened)
            self._timer = threading.Timer(_LONGEST_HOLD_S, self.release)
            self._timer.daemon = True
            self._timer.start()
        return self._connection

    def _query(self, sql: str, **parameters: object) -> list[Any]:
        with self._lock:
            connection = self._hold()
            try:
                return connection.execute(sql, parameters | {"log": self.log_id}).fetchall()
            except duckdb.Error as error:
                raise unreadable(self.path, error) from error


def _standard_headers(event: bytes) -> dict[str, bytes]:
    """Return the headers that every event's record has; the archive has only the others."""
    head = _head_decoder.decode(event)
    return event_headers(head.type, head.schema_version, head.event_id, head.run_id, head.occurred_at_ms)
