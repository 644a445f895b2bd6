"""Questions to the archive: SQL, its reference, exports and reports."""

import hashlib
from typing import TYPE_CHECKING

from unstable_stream.archive.export import export_batches, export_run
from unstable_stream.archive.read import stream
from unstable_stream.archive.reference import EXAMPLES, relations
from unstable_stream.history.views.curve import read_curve
from unstable_stream.history.views.report import Proof, find_runs, write_report

if TYPE_CHECKING:
    from unstable_stream.history.proofs.reports import VerifyReport

__all__ = [
    "EXAMPLES",
    "export_batches",
    "export_run",
    "find_runs",
    "proof_of",
    "read_curve",
    "relations",
    "stream",
    "write_report",
]


def proof_of(report: "VerifyReport") -> Proof:
    """Return what a page says of a verification; the digest is of what the command prints as JSON."""
    digest = hashlib.sha256(report.to_json() + b"\n").hexdigest()
    return Proof(report.ok, report.verdict, report.table(), report.problems, digest)
