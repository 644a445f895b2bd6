"""Put a run back into the archive from an export, as if it had never been away.

The export's table ``events`` has every record as it was read. From these the rows of all tables are made
again, by the code that made them first. One transaction of a DuckDB file, or one commit to a shared archive
(:mod:`.shared.restoring`), in this order:

1. compare: the export must be whole, and of records that the archive does not have otherwise;
2. insert the records whose positions the archive does not have, with their typed rows;
3. strike from ``missing_records`` what is there again, and note the run in ``restored_runs``.

A kill before the end leaves the archive as it was. Positions stay as they are, since other runs have records
in between: the archive must have read the log at least as far as the export goes. Of a log that is gone they
go on behind the export, and what lies between is noted as missing.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from unstable_stream.archive.batch import EVENTS, Batch, build_batch
from unstable_stream.archive.dropping import NOTE_BEGINNINGS
from unstable_stream.archive.export import MANIFEST, Manifest
from unstable_stream.archive.newest import added, encode_newest
from unstable_stream.archive.records import ArchivedRow
from unstable_stream.archive.store import SCHEMA_VERSION, Connection, WritableArchive
from unstable_stream.archive_address import ArchiveAddress, is_shared
from unstable_stream.errors import ArchiveError
from unstable_stream.stores import Store, checked_address, is_address

__all__ = [
    "EXPORTED",
    "Export",
    "RestoredRun",
    "compare",
    "lacking_records",
    "note_of",
    "refuse_beyond",
    "refuse_rejected",
    "restore_run",
]

_PIECE_RECORDS: Final = 5000
_Where: TypeAlias = tuple[str, str, int]
"""Log id, topic and partition."""


class RestoredRun(NamedTuple):
    """A run that was put back."""

    run_id: str
    name: str | None
    records: int
    """Records that the archive did not have."""
    there: int
    """Records of the export that it had."""
    missing: Sequence[str]
    """Ranges that the export lacks: ``topic[partition]@first to last``."""


@dataclass(frozen=True)
class Export:
    """An export that can be read."""

    address: str
    """As the user gave it."""
    manifest: Manifest
    file: Path
    """Its events, on this machine."""


def restore_run(
    archive: ArchiveAddress,
    export: Path | str,
    *,
    log_id: str | None = None,
    log_gone: bool = False,
    timeout_s: float = 60.0,
) -> RestoredRun:
    """Put the run of an export back, also one that was dropped.

    Args:
        archive: the archive; made if it does not exist.
        export: the directory, or the address in a store, that the run was exported to.
        log_id: the log that the archive has just been brought up to date with; ``None``: there is none.
        log_gone: the log that the export is of will not be archived any more.
        timeout_s: how long to wait while another process holds the file, whose writers and readers wait for
            this call; or how long to try again while others commit to the shared archive.

    Raises:
        ArchiveBusyError: others held the file, or committed to the shared archive, past the deadline; or the
            shared archive cannot be reached.
        ArchiveError: it is no whole export with the table ``events``; or it does not fit the archive; or the
            archive cannot be written. Nothing was changed.
        StoreError: the store of the export refuses, or cannot be reached.
    """
    with _opened(str(export)) as opened:
        if is_shared(archive):
            # Imported here: deltalake may not be installed.
            from unstable_stream.archive.shared.restoring import restore_to_shared

            return restore_to_shared(archive, opened, log_id, log_gone, timeout_s)
        writable = WritableArchive(Path(archive), timeout_s=timeout_s)
        try:
            with writable.held() as connection:
                connection.execute("BEGIN")
                done = _Restoring(connection, opened, log_id, log_gone).restore()
                connection.execute("COMMIT")
        except (duckdb.Error, pa.ArrowException) as error:
            raise ArchiveError(f"could not put back {export} into {archive}: {error}") from error
        finally:
            writable.close()
    return done


@contextmanager
def _opened(export: str) -> Iterator[Export]:
    """Give the export; if it is in a store, its events are copied here for as long."""
    with tempfile.TemporaryDirectory(prefix="unstable-stream-restore-") as made:
        store = Store(checked_address(export, "export")) if is_address(export) else None
        try:
            content = store.read(MANIFEST) if store else Path(export, MANIFEST).read_bytes()
            manifest = msgspec.json.decode(content or b"", type=Manifest)
        except (OSError, msgspec.DecodeError) as error:
            raise ArchiveError(
                f"{export} is no export: expected a directory or an address that unstable-stream export RUN "
                "-o was given"
            ) from error
        if manifest.schema_version > SCHEMA_VERSION:
            raise ArchiveError(
                f"{export} was exported from an archive of schema version {manifest.schema_version}; this "
                f"package knows up to {SCHEMA_VERSION}. Upgrade unstable_stream."
            )
        if EVENTS.name not in manifest.tables or not manifest.log_ids:
            raise ArchiveError(
                f"{export} lacks the table events with the log of each record: only an export of all tables "
                "can be put back, made without --tables and by version 0.1 or newer"
            )
        name = Path(manifest.tables[EVENTS.name].file).name
        try:
            if store is not None:
                store.get(name, Path(made, name))
            file = Path(made if store else export, name)
            whole = file.stat().st_size == manifest.tables[EVENTS.name].bytes
        except FileNotFoundError:
            whole = False
        if not whole:
            raise ArchiveError(f"{export} is not whole: {name} is not there as its {MANIFEST} says")
        yield Export(export, manifest, file)


def compare(connection: Connection, export: Export) -> bool:
    """Refuse what does not fit; return whether the run had ended when it was exported.

    Args:
        connection: its relation ``exported`` is the export (:data:`EXPORTED`), and ``there`` has the
            columns ``log_id``, ``topic``, ``partition``, ``offset``, ``run_id`` and ``event_id`` of all
            archived records at positions of the export.
        export: the export.

    Raises:
        ArchiveError: it is not whole, or the archive has other records at its positions.
    """
    run_id, rows = export.manifest.run_id, export.manifest.tables[EVENTS.name].rows
    ((there, of_run, ended),) = connection.execute(_ABOUT, [run_id]).fetchall()
    if there != of_run or there != rows:
        raise ArchiveError(
            f"{export.address} is not whole: its events are not those that {MANIFEST} tells of"
        )
    other = connection.execute(_OTHER).fetchall()
    if other:
        topic, partition, offset = other[0]
        raise ArchiveError(
            f"{export.address} has another record at {topic}[{partition}]@{offset} than the archive: the "
            "log had lost what was exported. Put it into an archive of its own, with another --data"
        )
    return bool(ended)


def lacking_records(connection: Connection, export: Export) -> Iterator[Mapping[str, Sequence[ArchivedRow]]]:
    """Yield the exported records that the archive lacks, some at a time, by the log that they are of.

    See :func:`compare`; ``there`` is asked for each piece.
    """
    with pq.ParquetFile(export.file) as opened:
        for piece in opened.iter_batches(_PIECE_RECORDS):
            connection.register("piece", pa.Table.from_batches([piece]))
            rows = connection.execute(_NEW, [export.manifest.run_id]).fetchall()
            connection.unregister("piece")
            by_log: dict[str, list[ArchivedRow]] = {}
            for log_id, topic, partition, offset, key, value, headers, time_ms in rows:
                row = ArchivedRow(topic, partition, offset, key, value, headers or {}, time_ms, True)
                by_log.setdefault(log_id, []).append(row)
            yield by_log


def refuse_rejected(export: Export, batch: Batch) -> None:
    """Raise :class:`ArchiveError` if a record made no rows."""
    for record, error in batch.rejected:
        raise ArchiveError(
            f"{export.address} has a record that cannot be read any more, {record.topic}"
            f"[{record.partition}]@{record.offset}: {error}"
        )


def refuse_beyond(
    export: Export, where: _Where, begin: int, end: int, log_id: str | None, *, log_gone: bool
) -> None:
    """Raise :class:`ArchiveError` if an export may not go on up to ``end`` where the archive ends before
    ``begin``.
    """
    of_log, topic, partition = where
    if of_log == log_id:
        raise ArchiveError(
            f"{export.address} goes up to {topic}[{partition}]@{end - 1}, but the log ends at {begin}: "
            "it has lost records. Put the export into an archive of its own, with another --data"
        )
    if not log_gone:
        raise ArchiveError(
            f"{export.address} is of the log {of_log}, of which the archive ends before {topic}"
            f"[{partition}]@{end - 1}: name that log with --log; or, if it is gone, add --log-gone"
        )


def note_of(export: Export, records: int, *, ended: bool) -> dict[str, object]:
    """Return the row of ``restored_runs``.

    Args:
        export: the export.
        records: the records of the run that the archive has from exports, those of earlier calls included.
        ended: whether the run had ended when it was exported.
    """
    manifest = export.manifest
    return {
        "run_id": manifest.run_id,
        "name": manifest.run_name,
        "restored_at": datetime.now(tz=UTC).replace(tzinfo=None),
        "exported_at": datetime.fromisoformat(manifest.exported_at).astimezone(UTC).replace(tzinfo=None),
        "export": export.address,
        "records": records,
        "whole": ended and not manifest.missing,
    }


class _Restoring:
    """One call of :func:`restore_run` on a DuckDB file; its transaction is open."""

    def __init__(self, connection: Connection, export: Export, log_id: str | None, log_gone: bool) -> None:
        self._connection = connection
        self._export = export
        self._log_id = log_id
        self._log_gone = log_gone
        self._run = export.manifest.run_id

    def restore(self) -> RestoredRun:
        """Do steps 1 to 3."""
        manifest = self._export.manifest
        self._connection.execute(EXPORTED.format(file=str(self._export.file).replace("'", "''")))
        self._connection.execute("CREATE OR REPLACE TEMP VIEW there AS FROM events")
        ended = compare(self._connection, self._export)
        self._connection.execute(NOTE_BEGINNINGS.format(events="events"))
        self._connection.execute("DELETE FROM dropped_runs WHERE run_id = ?", [self._run])
        records, ends, newest = self._insert()
        self._move(ends, newest)
        self._connection.execute(_STRIKE)
        before = self._connection.execute(
            "DELETE FROM restored_runs WHERE run_id = ? RETURNING records", [self._run]
        ).fetchall()
        note = note_of(self._export, records + sum(row[0] for row in before), ended=ended)
        columns = ", ".join(note)
        values = ", ".join("?" * len(note))
        self._connection.execute(f"INSERT INTO restored_runs ({columns}) VALUES ({values})", [*note.values()])
        there = manifest.tables[EVENTS.name].rows - records
        return RestoredRun(self._run, manifest.run_name, records, there, manifest.missing)

    def _insert(self) -> tuple[int, dict[_Where, int], dict[_Where, Mapping[int, str]]]:
        """Insert what is not there; return how many records, and where they end in each partition."""
        ((number,),) = self._connection.execute("SELECT next_record FROM schema_version").fetchall()
        first, ends, newest = number, dict[_Where, int](), dict[_Where, Mapping[int, str]]()
        for by_log in lacking_records(self._connection, self._export):
            for log_id, records in by_log.items():
                for row in records:
                    where = (log_id, row.topic, row.partition)
                    ends[where] = max(ends.get(where, 0), row.offset + 1)
                    newest[where] = added(newest.get(where, {}), [row])
                self._insert_rows(records, log_id, number)
                number += len(records)
        self._connection.execute("UPDATE schema_version SET next_record = ?", [number])
        return number - first, ends, newest

    def _insert_rows(self, records: Sequence[ArchivedRow], log_id: str, number: int) -> None:
        batch = build_batch(records, self._unseen, log_id, number)
        refuse_rejected(self._export, batch)
        for name, table in batch.tables.items():
            self._connection.register("made", table)
            self._connection.execute(f'INSERT INTO "{name}" BY NAME SELECT * FROM made')
            self._connection.unregister("made")

    def _unseen(self, event_ids: Sequence[str]) -> Sequence[bool]:
        self._connection.register("asked", pa.table({"id": pa.array(event_ids, pa.string())}))
        found = self._connection.execute(_KNOWN, [self._run]).fetchall()
        self._connection.unregister("asked")
        known = {row[0] for row in found}
        return [event_id not in known for event_id in event_ids]

    def _move(self, ends: Mapping[_Where, int], newest: Mapping[_Where, Mapping[int, str]]) -> None:
        """Let the positions of a log that is gone go on behind the export."""
        rows = self._connection.execute(
            'SELECT log_id, topic, "partition", next_offset FROM positions'
        ).fetchall()
        positions = {(log_id, topic, number): offset for log_id, topic, number, offset in rows}
        for where, end in sorted(ends.items()):
            begin = positions.get(where, 0)
            if end <= begin:
                continue
            refuse_beyond(self._export, where, begin, end, self._log_id, log_gone=self._log_gone)
            self._connection.execute(
                "INSERT INTO missing_records VALUES (?, ?, ?, ?, ?, NULL)", [*where, begin, end]
            )
            self._connection.execute(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)",
                [*where, end, encode_newest(newest[where])],
            )


EXPORTED: Final = "CREATE OR REPLACE TEMP VIEW exported AS FROM read_parquet('{file}')"
"""Makes a relation of the export's file, whose name is quoted."""
_SAME: Final = (
    'e.log_id = x.log_id AND e.topic = x.topic AND e."partition" = x."partition" AND e."offset" = x."offset"'
)
_ABOUT: Final = """
SELECT count(*), count(*) FILTER (run_id = $1),
    max(timestamp_ms) FILTER (type = 'run-finished')
        >= max(timestamp_ms) FILTER (topic = 'runs' AND type <> 'run-finished')
FROM exported
"""
_OTHER: Final = f"""
SELECT x.topic, x."partition", x."offset" FROM exported AS x JOIN there AS e ON {_SAME}
WHERE e.event_id IS DISTINCT FROM x.event_id ORDER BY ALL LIMIT 1
"""
_NEW: Final = f"""
SELECT x.log_id, x.topic, x."partition", x."offset", x.key, coalesce(encode(x.value), x.value_bytes),
    x.headers, x.timestamp_ms
FROM piece AS x WHERE NOT EXISTS (SELECT 1 FROM there AS e WHERE e.run_id = $1 AND {_SAME})
ORDER BY x.record_number
"""
_KNOWN: Final = "SELECT event_id FROM events WHERE run_id = ? AND event_id IN (SELECT id FROM asked)"
_STRIKE: Final = """
DELETE FROM missing_records WHERE rowid IN (
    SELECT m.rowid FROM missing_records AS m
    JOIN events AS e ON e.log_id = m.log_id AND e.topic = m.topic AND e."partition" = m."partition"
        AND e."offset" >= m.first_offset AND e."offset" < m.next_offset
    GROUP BY m.rowid HAVING count(DISTINCT e."offset") = any_value(m.next_offset - m.first_offset)
)
"""
