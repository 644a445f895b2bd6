"""Questions to the archive: SQL, its reference, exports and reports."""

from unstable_stream.archive.examples import EXAMPLES
from unstable_stream.archive.export import BatchFormat, export_batches, export_run
from unstable_stream.archive.exported import Manifest
from unstable_stream.archive.read import StreamedResult, query, stream
from unstable_stream.archive.reference import ArchiveRelation, relations
from unstable_stream.history.views.report import find_runs, write_report

__all__ = [
    "EXAMPLES",
    "ArchiveRelation",
    "BatchFormat",
    "Manifest",
    "StreamedResult",
    "export_batches",
    "export_run",
    "find_runs",
    "query",
    "relations",
    "stream",
    "write_report",
]
