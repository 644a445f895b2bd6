"""Keep every topic in one DuckDB file, raw and as typed tables, which can be read while a run writes it."""

from unstable_stream.archive.batch import ArchivedRecord
from unstable_stream.archive.dropping import (
    DroppedRun,
    Missing,
    drop_run,
    dropped_error,
    dropped_runs,
    keep_dropped,
    missing_in_archive,
)
from unstable_stream.archive.opening import archive_bytes, open_archive, open_store
from unstable_stream.archive.read import (
    Cancel,
    QueryResult,
    StreamedResult,
    held,
    held_unless_file,
    query,
    query_arrow,
    stream,
    too_many_bytes,
    write_parquet,
)
from unstable_stream.archive.records import ArchivedRow, RecordReader
from unstable_stream.archive.store import SCHEMA_VERSION, copy_archive
from unstable_stream.archive.writer import ArchiveWriter
from unstable_stream.archive.writing import Prepared, Tidied, Written

__all__ = [
    "SCHEMA_VERSION",
    "ArchiveWriter",
    "ArchivedRecord",
    "ArchivedRow",
    "Cancel",
    "DroppedRun",
    "Missing",
    "Prepared",
    "QueryResult",
    "RecordReader",
    "StreamedResult",
    "Tidied",
    "Written",
    "archive_bytes",
    "copy_archive",
    "drop_run",
    "dropped_error",
    "dropped_runs",
    "held",
    "held_unless_file",
    "keep_dropped",
    "missing_in_archive",
    "open_archive",
    "open_store",
    "query",
    "query_arrow",
    "stream",
    "too_many_bytes",
    "write_parquet",
]
