"""Read a shared archive: one version of its table as the tables and views that a DuckDB file has.

The files are read through :class:`~unstable_stream.log.stores.snapshot_files.SnapshotFiles`, which opens
these and nothing else, and needs no extension of DuckDB for the store that they are in. The first of each
list is empty and has the columns of this package, so files of older and newer ones fit.
"""

import functools
import io
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.shared.relations import (
    NUMBER,
    POSITIONS,
    RELATIONS,
    TYPED,
    first_number,
    of_relation,
)
from unstable_stream.archive.shared.table import SharedTable
from unstable_stream.archive.store import Connection, in_memory
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.log.stores.snapshot_files import PROTOCOL, SnapshotFiles

_SHAPE: Final = "shape-of-"


def open_shared(archive: ArchiveAddress, *, files: bool = False, records_only: bool = False) -> Connection:
    """Open the present version of a shared archive, read-only; writers go on meanwhile.

    Args:
        archive: its address.
        files: other files may be read and written.
        records_only: only ``events`` and the archive's own tables. Of the others it must be known which
            events were archived twice, which is found out here.

    Raises:
        ArchiveError: there is none, or a newer version of the package wrote it.
        ArchiveBusyError: its store cannot be reached.
    """
    table = SharedTable(archive)
    stored = {file.name: file for file in table.files()}
    shapes = {f"{_SHAPE}{relation}": _shape(relation) for relation in RELATIONS}
    sizes = {name: len(shape) for name, shape in shapes.items()} | {n: f.size for n, f in stored.items()}

    def opened(name: str) -> BinaryIO:
        return io.BytesIO(shapes[name]) if name in shapes else table.open(name)

    listed: dict[str, list[str]] = {relation: [f"{_SHAPE}{relation}"] for relation in RELATIONS}
    for file in stored.values():
        if file.relation in listed:  # else of a newer package
            listed[file.relation].append(file.name)
    with in_memory(archive, files=files) as connection:
        connection.register_filesystem(SnapshotFiles(sizes, opened))
        connection.execute(f"SET allowed_directories = ['{PROTOCOL}://']")
        connection.execute("UPDATE schema_version SET archive_id = ?, next_record = NULL", [table.archive_id])
        for relation in RELATIONS:
            connection.execute(f'DROP TABLE "{relation}"')
            if relation not in TYPED:
                connection.execute(_view(relation, listed[relation]))
        connection.execute(_NUMBERS.format(size=first_number(1)))
        if not records_only:
            connection.execute(_REPEATED)
            ((repeated,),) = connection.execute("SELECT count(*) FROM repeated").fetchall()
            for relation in TYPED:
                connection.execute(_view(relation, listed[relation], repeated=repeated > 0))
    return connection


@functools.cache
def _shape(relation: str) -> bytes:
    made = pa.BufferOutputStream()
    columns = {NUMBER: pa.array([], pa.int64()), relation: pa.array([], of_relation(relation))}
    pq.write_table(pa.table(columns), made)
    content: bytes = made.getvalue().to_pybytes()
    return content


def _view(relation: str, names: list[str], *, repeated: bool = False) -> str:
    columns = [
        f'file."{relation}"."{name}"{"::JSON" if kind == "JSON" else ""} AS "{name}"'
        for name, kind in RELATIONS[relation].items()
    ]
    if relation in TYPED or relation == EVENTS.name:
        columns.append(f"file.{NUMBER}")
    files = ", ".join(f"'{PROTOCOL}://{name}'" for name in names)
    rows = f"SELECT {', '.join(columns)} FROM read_parquet([{files}], hive_partitioning = false) AS file"
    if repeated:
        rows += f" WHERE file.{NUMBER} NOT IN (SELECT number FROM repeated)"
    return f'CREATE VIEW "{_MOVES if relation == POSITIONS else relation}" AS {rows}'


_MOVES: Final = "position_changes"
_NUMBERS: Final = f"""
CREATE VIEW {POSITIONS} AS
SELECT log_id, topic, "partition", next_offset FROM {_MOVES}
QUALIFY row_number() OVER (PARTITION BY log_id, topic, "partition" ORDER BY next_offset DESC) = 1
    AND next_offset > 0;
CREATE VIEW partition_numbers AS
SELECT DISTINCT
    log_id, topic, "partition",
    slot * {{size}}::BIGINT AS first_number, (slot + 1) * {{size}}::BIGINT AS end_number
FROM {_MOVES};
"""
# Of 8 bytes an event first: nearly all come once, and the ids are several times as long.
_REPEATED: Final = f"""
CREATE TABLE repeated AS
WITH suspects AS (
    SELECT hash(event_id) AS id FROM events WHERE type IS NOT NULL GROUP BY 1 HAVING count(*) > 1
)
SELECT {NUMBER} AS number FROM events
WHERE type IS NOT NULL AND hash(event_id) IN (SELECT id FROM suspects)
QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY {NUMBER}) > 1
"""
