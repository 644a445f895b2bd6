"""Drop a run from the archive, after looking whether it is over and all of it is archived."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream import archive
from unstable_stream.api.place import Place
from unstable_stream.archive import DroppedRun, archive_bytes, find_archived_run, open_archive
from unstable_stream.errors import ArchiveError, RunError
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log.reading import events_to_end
from unstable_stream.runs.life import LOST_AFTER_MS


@dataclass(frozen=True)
class Droppable:
    """A run that may be dropped."""

    run_id: str
    name: str | None
    records: int
    share: float
    """Of the records in the archive, 0 to 1."""
    archive_bytes: int
    forks: Sequence[str]
    """The runs that were forked from it: what they say of it leads nowhere then."""
    unasked_logs: Sequence[str]
    """The logs that it was recorded in and that were not asked whether they have more of it."""


def look_at_run(place: Place, run: str, *, idle_s: float = LOST_AFTER_MS / 1000) -> Droppable:
    """Return what dropping a run would take out; change nothing.

    Args:
        place: whose archive, and whose log.
        run: id or prefix.
        idle_s: a run that never ended is over if nothing of it was archived for so many seconds.

    Raises:
        RunError: no such run, it was dropped before, or it is not over.
        ArchiveError: there is no archive; or the log has records of the run that are not archived yet. Only
            the log of ``place`` is asked.
        ArchiveBusyError: another process held the archive past the deadline, or it cannot be reached.
    """
    if place.data.is_export:
        raise ArchiveError(f"{place.data.root} is an export, which is only read: delete it instead")
    with open_archive(place.archive) as connection:
        run_id = find_archived_run(connection, run)
        ((name, state, records, last_ms, total),) = connection.execute(_ABOUT, [run_id]).fetchall()
        forks = connection.execute(_FORKS, [run_id]).fetchall()
        logs = connection.execute(_LOGS, [run_id]).fetchall()
        positions = connection.execute(
            'SELECT log_id, topic, "partition", next_offset FROM positions'
        ).fetchall()
    if state == "running" and time.time() * 1000 - last_ms < idle_s * 1000:
        raise RunError(
            f"run {run_id} has not ended, and something was recorded of it within "
            f"{idle_s / 60:,.0f} minutes: stop it with Ctrl-C; if it was killed, wait so long"
        )

    async def unarchived(log: EventLog) -> tuple[str, str | None]:
        log_id = await log.log_id()
        known = {TopicPartition(*row[1:3]): row[3] for row in positions if row[0] == log_id}
        return log_id, await _first_unarchived(log, known, run_id)

    asked = ""
    if place.log != "local" or place.data.log.is_file():
        asked, where = place.ask_log(unarchived)
        if where is not None:
            raise ArchiveError(
                f"run {run_id} is still being archived: the log has {where}, the archive has not. First: "
                f"unstable-stream archive{place.options}"
            )
    size = archive_bytes(place.archive)
    unasked = [row[0] for row in logs if row[0] not in ("", asked)]  # "": of an archive that knew no logs
    return Droppable(run_id, name, records, records / total, size, [row[0] for row in forks], unasked)


def drop_run(place: Place, run: str, *, idle_s: float = LOST_AFTER_MS / 1000) -> DroppedRun:
    """Take all rows of a run out of the archive for good; the archiver does not archive it again.

    A DuckDB file is written anew without them: it needs as much free disk as what stays, and whoever reads or
    writes the archive waits meanwhile. Of a shared archive the files with rows of the run are written anew,
    and nobody waits. The log, checkpoints, exports and backups are not touched.

    Args:
        place: see :func:`look_at_run`, as for all arguments.
        run: id or prefix.
        idle_s: when a run that never ended is over.

    Raises:
        RunError, ArchiveError: see :func:`look_at_run`; or the archive could not be written, and was not
            changed.
        ArchiveBusyError: see :func:`look_at_run`; or others committed to the shared archive all the time.
    """
    found = look_at_run(place, run, idle_s=idle_s)
    return archive.drop_run(place.archive, found.run_id)


async def _first_unarchived(log: EventLog, archived: dict[TopicPartition, int], run_id: str) -> str | None:
    there = await log.topics()
    topics = sorted({at.topic for at in archived} & there.keys())
    starts: dict[TopicPartition, int] = {}
    for topic in topics:
        starts |= {
            at: max(begin, archived.get(at, 0)) for at, begin in (await log.beginning_offsets(topic)).items()
        }
    if topics:
        async for record, _ in events_to_end(log, topics, run_id=run_id, starts=starts):
            return f"{record.topic}[{record.partition}]@{record.offset}"
    return None


_ABOUT: Final = """
SELECT
    (SELECT name FROM runs WHERE run_id = $1),
    (SELECT state FROM runs WHERE run_id = $1),
    count(*) FILTER (run_id = $1),
    max(timestamp_ms) FILTER (run_id = $1),
    count(*)
FROM events
"""
_LOGS: Final = "SELECT DISTINCT log_id FROM events WHERE run_id = ? ORDER BY log_id"
_FORKS: Final = "SELECT run_id FROM runs WHERE parent_run_id = ? ORDER BY run_id"
