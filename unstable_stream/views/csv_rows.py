"""Write rows as CSV, with values as text that reads the same everywhere."""

import csv
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import IO, Any

__all__ = ["cell_text", "write_csv"]


def write_csv(file: IO[str], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a header and the rows. ``Any``: what DuckDB makes of the columns' types."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell_text(value) for value in row] for row in rows)


def cell_text(value: Any) -> str:
    """Return a value as text, nothing for NULL. ``Any``: as in :func:`write_csv`."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds" if value.microsecond else "seconds")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)
