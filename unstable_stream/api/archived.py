"""Questions to the archive: SQL, its reference, exports and reports."""

from unstable_stream.archive.export import export_batches, export_run
from unstable_stream.archive.read import stream
from unstable_stream.archive.reference import EXAMPLES, relations
from unstable_stream.history.views.curve import read_curve
from unstable_stream.history.views.report import find_runs, write_report

__all__ = [
    "EXAMPLES",
    "export_batches",
    "export_run",
    "find_runs",
    "read_curve",
    "relations",
    "stream",
    "write_report",
]
