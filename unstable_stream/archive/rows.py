"""Read a table of somebody else's: JSON Lines, JSON or Parquet, row by row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unstable_stream.errors import ConfigError

_AT_ONCE = 1000


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file: ``.parquet``, ``.jsonl``, or ``.json`` with a list of rows or a single one.

    Raises:
        ConfigError: it cannot be read, or a row is no table; says which.
    """
    try:
        for number, row in enumerate(_rows(path), 1):
            if not isinstance(row, dict):
                raise ConfigError(f"{path}: row {number} is no object with named values")
            yield row
    except (OSError, ValueError, RecursionError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _rows(path: Path) -> Iterator[Any]:
    """``Any``: what JSON or Arrow makes of a row."""
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_AT_ONCE):
                yield from batch.to_pylist()
    elif path.suffix == ".json":
        whole = msgspec.json.decode(path.read_bytes())
        yield from whole if isinstance(whole, list) else [whole]
    else:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    if line.strip():
                        yield msgspec.json.decode(line)
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error
