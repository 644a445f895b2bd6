"""Keep every topic in one DuckDB file, raw and as typed tables, which can be read while a run writes it."""

from unstable_stream.archive.dropping import drop_run, dropped_error, dropped_runs
from unstable_stream.archive.opening import archive_bytes, open_archive
from unstable_stream.archive.read import Cancel, QueryResult, held, query, query_arrow, stream
from unstable_stream.archive.records import RecordReader
from unstable_stream.archive.store import SCHEMA_VERSION
from unstable_stream.archive.writer import ArchiveWriter
from unstable_stream.archive.writing import DroppedRun, Prepared, Written

__all__ = [
    "SCHEMA_VERSION",
    "ArchiveWriter",
    "Cancel",
    "DroppedRun",
    "Prepared",
    "QueryResult",
    "RecordReader",
    "Written",
    "archive_bytes",
    "drop_run",
    "dropped_error",
    "dropped_runs",
    "held",
    "open_archive",
    "query",
    "query_arrow",
    "stream",
]
