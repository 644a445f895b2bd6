"""Ask the archive a question and get rows, with errors a person can act on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.store import open_archive
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.view_files import load_views
from unstable_stream.errors import ArchiveError

__all__ = ["QueryResult", "query"]


class QueryResult(NamedTuple):
    """Columns and rows of a query."""

    columns: Sequence[str]
    types: Sequence[str]
    """DuckDB's names, e.g. ``DOUBLE``."""
    rows: Sequence[tuple[Any, ...]]
    """``Any``: whatever Python value DuckDB makes of the column's type."""

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as column name to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def query(
    path: Path | str,
    sql: str,
    parameters: Sequence[object] | Mapping[str, object] | None = None,
    *,
    write: bool = False,
    timeout_s: float = 30.0,
) -> QueryResult:
    """Run ``sql`` and return all rows; opens the archive for this query only.

    Args:
        path: the archive.
        sql: one or more statements; the last one's rows are returned.
        parameters: values for ``?``, ``$1`` or ``$name``.
        write: allow changes; by default the file is opened read-only.
        timeout_s: how long to wait while another process writes.

    Raises:
        ArchiveBusyError: another process held the archive past the deadline.
        ArchiveError: there is no archive, or the SQL is wrong; names what would be right.
    """
    with open_archive(path, read_only=not write, timeout_s=timeout_s) as connection:
        try:
            cursor = connection.execute(sql, parameters)
            description = cursor.description or []
            rows = cursor.fetchall() if description else []
        except duckdb.Error as error:
            raise ArchiveError(_explain(error)) from error
    return QueryResult(
        [column[0] for column in description], [str(column[1]) for column in description], rows
    )


def _explain(error: duckdb.Error) -> str:
    """Return one line: what DuckDB found wrong, and what to do."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(("LINE ", "^")))
    if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
        names = [EVENTS.name, *(table.name for table in TABLES), *(view.name for view in load_views())]
        return f"{lines[0]} Tables and views: {', '.join(sorted(names))}."
    if "read-only" in text:
        return f"{text} Add --write to change the archive."
    if isinstance(error, duckdb.BinderException):
        return f"{text}. See the columns with: unstable-stream sql --tables"
    return text
