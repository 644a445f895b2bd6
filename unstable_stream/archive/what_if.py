"""Store ratings or steps that other settings would have given, under a label, beside the real ones.

A set is a directory ``what-if/RUN/LABEL`` of the data directory: Parquet files, one per table, and
``about.json``, which says how it was made. Files beside the archive, not tables in it: they are made while a
run holds the archive for writing, any tool reads them, and deleting one is ``rm -r``. DuckDB queries them
where they lie, also beside the archive's own tables::

    SELECT * FROM 'unstable-data/what-if/RUN/LABEL/ratings.parquet'
"""

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unstable_stream.archive.batch import ARROW_TYPES
from unstable_stream.archive.game_columns import Coded
from unstable_stream.archive.read import QueryResult
from unstable_stream.errors import ArchiveError, ConfigError
from unstable_stream.version import __version__

TableSchema = Mapping[str, str]
"""Column to DuckDB type, one of the archive's."""

Values: TypeAlias = Sequence[Any] | NDArray[Any] | Coded
"""A column; ``Any``: values of its type."""

_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=,+-]{0,149}")
_COMPRESSION: Final = "zstd"


def set_directory(sets: Path, label: str) -> Path:
    """Return where the set with this label is kept, among the sets of its run.

    Raises:
        ConfigError: a label that cannot be a file name everywhere.
    """
    if not _LABEL.fullmatch(label):
        raise ConfigError(
            f"label {label!r}: expected letters, digits and any of _ . = , + - with a letter or digit "
            "first, 150 at most"
        )
    return sets / label


class LabelledSet:
    """A set being written; made by :func:`open_set`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()  # what is before a colon is for Arrow and DuckDB a kind of URI
        self._writers: dict[str, pq.ParquetWriter] = {}
        self.about: dict[str, Any] = {}
        """The content of ``about.json``."""

    def write(self, table: str, schema: TableSchema, columns: Mapping[str, Values]) -> None:
        """Append rows, given as columns of equal length."""
        types = pa.schema([(name, ARROW_TYPES[sql_type]) for name, sql_type in schema.items()])
        writer = self._writers.get(table)
        if writer is None:
            writer = self._writers[table] = pq.ParquetWriter(
                self._directory / f"{table}.parquet", types, compression=_COMPRESSION
            )
        arrays = [_array(columns[name], types.field(name).type) for name in schema]
        writer.write_table(pa.Table.from_arrays(arrays, schema=types))

    def write_rows(self, table: str, schema: TableSchema, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows with the columns of the schema; also without any, so that the table exists."""
        columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
        self.write(table, schema, dict(zip(schema, map(list, columns), strict=True)))

    def describe(self, kind: str, run_id: str, **more: Any) -> None:
        """Say how it was made."""
        made_at = datetime.now(tz=UTC).isoformat(timespec="seconds")
        self.about |= {"kind": kind, "run_id": run_id, "package_version": __version__, "made_at": made_at}
        self.about |= more

    def finish_tables(self) -> None:
        """Close all tables: nothing more can be written, and :meth:`query` sees everything."""
        for writer in self._writers.values():
            writer.close()

    def query(self, sql: str) -> QueryResult:
        """Run SQL on the finished tables."""
        with duckdb.connect() as connection:
            for table in self._writers:
                path = str(self._directory / f"{table}.parquet").replace("'", "''")
                path = re.sub(r"[*?\[]", r"[\g<0>]", path)  # it is a pattern
                connection.execute(f"CREATE VIEW \"{table}\" AS FROM '{path}'")
            cursor = connection.execute(sql)
            description = cursor.description or []
            return QueryResult(
                [column[0] for column in description],
                [str(column[1]) for column in description],
                cursor.fetchall(),
            )


def _array(values: Values, kind: pa.DataType) -> pa.Array:
    if isinstance(values, Coded):
        return _array(values.values, kind).take(pa.array(values.codes))
    return values if isinstance(values, pa.Array) else pa.array(values, type=kind)


@contextlib.contextmanager
def open_set(directory: Path | None, *, replace: bool = False) -> Iterator[LabelledSet]:
    """Write a set. It appears whole when the block ends, or not at all. ``None``: it is deleted then.

    Raises:
        ArchiveError: there is one with this label, and it is not to be replaced; or the disk refuses.
    """
    if directory is None:
        with tempfile.TemporaryDirectory() as scratch, open_set(Path(scratch, "set")) as made:
            yield made
        return
    if directory.exists() and not replace:
        raise ArchiveError(
            f"there is a set at {directory} already: give this one another --label, or replace that one "
            "with --force"
        )
    unfinished = directory.parent / f".{directory.name}.{os.getpid()}"
    try:
        unfinished.mkdir(parents=True)
        made = LabelledSet(unfinished)
        try:
            yield made
        finally:
            made.finish_tables()
        (unfinished / "about.json").write_text(json.dumps(made.about, indent=2) + "\n", encoding="utf-8")
        if directory.exists():
            shutil.rmtree(directory)
        unfinished.rename(directory)
    except OSError as error:
        raise ArchiveError(f"cannot write {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
