"""Read an export as an archive: its tables are views over the Parquet files of a directory."""

import re
from pathlib import Path
from typing import Final

import msgspec

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.store import SCHEMA_VERSION, Connection, in_memory, quoted
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.tables.declare import TableDefinition
from unstable_stream.errors import ArchiveError
from unstable_stream.log.stores.archive_address import MANIFEST

_FORMAT: Final = "unstable-stream export"
_FORMAT_VERSION: Final = 1


class ExportedTable(msgspec.Struct, frozen=True):
    """One file of an export."""

    file: str
    rows: int
    bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an export, stored as ``manifest.json``."""

    format: str = _FORMAT
    format_version: int = _FORMAT_VERSION
    run_id: str
    run_name: str | None
    exported_at: str
    """Time of the export: UTC, ISO 8601."""
    package_version: str
    schema_version: int
    """Schema version of the archive; the reference of that version explains the columns."""
    log_ids: list[str]
    """The logs that the run's records were read from."""
    tables: dict[str, ExportedTable]
    missing: list[str] = []
    """Ranges that the archive lacks and that may be of the run: ``topic[partition]@first to last``."""


def open_export(directory: Path, *, files: bool = False) -> Connection:
    """Open an export read-only, with the tables and views of an archive that has this run alone.

    Args:
        directory: where the export is.
        files: other files may be read and written.

    Raises:
        ArchiveError: it is no whole export with the table ``events``, or of a newer version of the package.
    """
    manifest = _read_manifest(directory)
    paths = {name: quoted(directory / Path(each.file).name) for name, each in manifest.tables.items()}
    with in_memory(directory, files=files) as connection:
        for table in (EVENTS, *TABLES):
            if table.name in paths:  # else of an older package, which had no such rows
                connection.execute(f'DROP TABLE "{table.name}"')
                connection.execute(_view(connection, table, paths[table.name]))
        connection.execute(_POSITIONS)
        for told in manifest.missing:
            if found := _RANGE.fullmatch(told):
                topic, partition, first, last = found.groups()
                row = [manifest.log_ids[0], topic, int(partition), int(first), int(last) + 1]
                connection.execute("INSERT INTO missing_records VALUES (?, ?, ?, ?, ?, NULL)", row)
        connection.execute(f"SET allowed_paths = [{', '.join(paths.values())}]")
    return connection


def _read_manifest(directory: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise ArchiveError(
            f"{directory} is no export: expected a directory that unstable-stream export RUN -o was given"
        ) from error
    if manifest.schema_version != SCHEMA_VERSION:
        remedy = "Upgrade unstable_stream" if manifest.schema_version > SCHEMA_VERSION else "Export it again"
        raise ArchiveError(
            f"{directory} was exported from an archive of schema version {manifest.schema_version}; this "
            f"package reads version {SCHEMA_VERSION}. {remedy}."
        )
    if EVENTS.name not in manifest.tables or not manifest.log_ids:
        raise ArchiveError(
            f"{directory} lacks the table events with the log of each record: only an export of all tables "
            "can be opened as an archive, made without --tables and by version 0.1 or newer"
        )
    for table in manifest.tables.values():
        file = directory / Path(table.file).name
        if not file.is_file() or file.stat().st_size != table.bytes:
            raise ArchiveError(
                f"{directory} is not whole: expected {file.name} with {table.bytes:,} bytes, as its "
                f"{MANIFEST} says; copy or export the run again"
            )
    return manifest


def _view(connection: Connection, table: TableDefinition, path: str) -> str:
    rows = f"FROM read_parquet({path})"
    there = {row[0] for row in connection.execute(f"DESCRIBE {rows}").fetchall()}
    columns = [
        f"{column.quoted if column.name in there else 'NULL'}::{column.sql_type} AS {column.quoted}"
        for column in table.columns
    ]
    return f'CREATE VIEW "{table.name}" AS SELECT {", ".join(columns)} {rows}'


_RANGE: Final = re.compile(r"(.+)\[(\d+)\]@(\d+) to (\d+)")
"""A range of ``Manifest.missing``."""
_POSITIONS: Final = """
INSERT INTO positions SELECT log_id, topic, "partition", max("offset") + 1 FROM events GROUP BY ALL
"""
