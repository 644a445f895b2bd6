"""Take records out of the archive that the log has lost, with every row that was made from them.

One transaction, in this order:

1. save the records' rows of ``events`` as a Parquet file beside the archive: nothing is destroyed;
2. delete them from ``events`` and, by their numbers, from every typed table;
3. make typed rows of the same events where ``events`` still has them at another position: there they were
   recognised as published twice;
4. set the position back and note what was done in ``divergences``.
"""

from pathlib import Path
from typing import Final

import duckdb

from unstable_stream.archive.batch import typed_rows
from unstable_stream.archive.newest import Newest, encode_newest
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.writing import Removed
from unstable_stream.errors import ArchiveError
from unstable_stream.events import decode_event
from unstable_stream.record_digest import content_digest

__all__ = ["remove_records"]


def remove_records(
    connection: duckdb.DuckDBPyConnection,
    path: Path,
    where: tuple[str, str, int],
    first_offset: int,
    newest_kept: int,
) -> Removed:
    """Take out the records of a partition from an offset on.

    Args:
        connection: the archive, held for writing; the caller's transaction is open.
        path: its file.
        where: log, topic and partition.
        first_offset: the first offset to take out; the partition's position becomes this.
        newest_kept: the number of remaining records whose digests go with the position.

    Raises:
        ArchiveError: an older version of the package archived some of them, and their typed rows do not tell
            which record they are of.
    """
    connection.execute(_GHOSTS, [*where, first_offset])
    ((records, first_number),) = connection.execute(
        "SELECT count(*), min(record_number) FROM ghosts"
    ).fetchall()
    saved_to = ""
    if records:
        _refuse_untraced(connection, path, where, first_offset, first_number)
        saved_to = str(_save(connection, path, where, first_offset, first_number))
        for name in ("events", *(table.name for table in TABLES)):
            connection.execute(
                f'DELETE FROM "{name}" WHERE record_number IN (SELECT record_number FROM ghosts)'
            )
        _put_in_place(connection)
    connection.execute(_NOTE, [*where, first_offset, *where, records, saved_to])
    connection.execute(
        _SET_BACK, [first_offset, encode_newest(_newest(connection, where, newest_kept)), *where]
    )
    # A partition of which nothing is archived has no position.
    connection.execute("DELETE FROM positions WHERE next_offset = 0")
    connection.execute("DROP TABLE ghosts")
    return Removed(records, saved_to)


def _refuse_untraced(
    connection: duckdb.DuckDBPyConnection,
    path: Path,
    where: tuple[str, str, int],
    first_offset: int,
    first_number: int,
) -> None:
    ((traced_from,),) = connection.execute("SELECT traced_from FROM schema_version").fetchall()
    if first_number < traced_from:
        _, topic, partition = where
        raise ArchiveError(
            f"the archive {path} holds records from {topic}[{partition}]@{first_offset} on that the log no "
            "longer has, and an older version of unstable_stream archived them: their rows cannot be found. "
            "Archive the log anew; the present archive is kept beside: unstable-stream archive --rebuild"
        )


def _save(
    connection: duckdb.DuckDBPyConnection,
    path: Path,
    where: tuple[str, str, int],
    first_offset: int,
    first_number: int,
) -> Path:
    _, topic, partition = where
    directory = path.with_name(f"{path.name}-lost-by-the-log")
    directory.mkdir(exist_ok=True)
    # The number makes the name unique: the same offsets may be lost twice.
    saved_to = directory / f"{topic}-{partition}-from-{first_offset}-record-{first_number}.parquet"
    quoted = str(saved_to).replace("'", "''")
    connection.execute(
        "COPY (SELECT * FROM events WHERE record_number IN (SELECT record_number FROM ghosts) "
        f"ORDER BY \"offset\") TO '{quoted}' (FORMAT parquet, COMPRESSION zstd)"
    )
    return saved_to


def _put_in_place(connection: duckdb.DuckDBPyConnection) -> None:
    found = connection.execute(_ELSEWHERE).fetchall()
    tables = typed_rows([(number, decode_event(value)) for number, value in found])
    for name, rows in tables.items():
        connection.register("rows_elsewhere", rows)
        connection.execute(f'INSERT INTO "{name}" BY NAME SELECT * FROM rows_elsewhere')
        connection.unregister("rows_elsewhere")


def _newest(connection: duckdb.DuckDBPyConnection, where: tuple[str, str, int], most: int) -> Newest:
    rows = connection.execute(_LAST, [*where, most]).fetchall()
    return {
        offset: content_digest(key, timestamp_ms, value)
        for offset, key, timestamp_ms, value in reversed(rows)
    }


_OF_PARTITION: Final = 'log_id = ? AND topic = ? AND "partition" = ?'
_GHOSTS: Final = f"""
CREATE OR REPLACE TEMP TABLE ghosts AS
SELECT record_number, CASE WHEN type IS NOT NULL THEN event_id END AS event_id FROM events
WHERE {_OF_PARTITION} AND "offset" >= ?
"""
# The typed rows of an event are those of its first archived record. So a ghost that came later had none.
_ELSEWHERE: Final = """
SELECT e.record_number, coalesce(encode(e.value), e.value_bytes)
FROM events AS e
JOIN (SELECT event_id, min(record_number) AS first FROM ghosts GROUP BY event_id) AS g USING (event_id)
WHERE e.type IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY e.record_number) = 1 AND e.record_number > g.first
"""
_NOTE: Final = f"""
INSERT INTO divergences
SELECT ?, ?, ?, ?, (SELECT next_offset FROM positions WHERE {_OF_PARTITION}), ?, ?
"""
_SET_BACK: Final = f"UPDATE positions SET next_offset = ?, newest = ? WHERE {_OF_PARTITION}"
_LAST: Final = f"""
SELECT "offset", key, timestamp_ms, coalesce(encode(value), value_bytes) FROM events
WHERE {_OF_PARTITION} ORDER BY "offset" DESC LIMIT ?
"""
