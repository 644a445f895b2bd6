"""Keep every topic in one DuckDB file, raw and as typed tables, which can be read while a run writes it."""

from unstable_stream.archive.dropping import drop_run as drop_run
from unstable_stream.archive.dropping import dropped_error as dropped_error
from unstable_stream.archive.dropping import dropped_ids as dropped_ids
from unstable_stream.archive.dropping import dropped_runs as dropped_runs
from unstable_stream.archive.dropping import find_archived_run as find_archived_run
from unstable_stream.archive.dropping import known_runs as known_runs
from unstable_stream.archive.opening import archive_bytes as archive_bytes
from unstable_stream.archive.opening import open_archive as open_archive
from unstable_stream.archive.read import Cancel as Cancel
from unstable_stream.archive.read import QueryResult as QueryResult
from unstable_stream.archive.read import held as held
from unstable_stream.archive.read import query as query
from unstable_stream.archive.read import query_arrow as query_arrow
from unstable_stream.archive.read import stream as stream
from unstable_stream.archive.records import RecordReader as RecordReader
from unstable_stream.archive.store import SCHEMA_VERSION as SCHEMA_VERSION
from unstable_stream.archive.writer import ArchiveWriter as ArchiveWriter
from unstable_stream.archive.writing import DroppedRun as DroppedRun
from unstable_stream.archive.writing import Prepared as Prepared
from unstable_stream.archive.writing import Written as Written
