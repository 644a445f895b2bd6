"""Put a run back into the archive from an export of it."""

from unstable_stream import archive
from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive as bring_up_to_date
from unstable_stream.archive.restoring import RestoredRun

__all__ = ["RestoredRun", "restore_run"]


def restore_run(place: Place, export: str, *, log_gone: bool = False) -> RestoredRun:
    """Put a run back that expired in the log, and whose archive was lost, or that was dropped from it.

    First the archive is brought up to date with the log, if there is one. Then it answers as the archive did
    that the run was exported from; several runs are put back one after the other.

    Args:
        place: whose archive, and whose log.
        export: the directory or the address in a store that the run was exported to.
        log_gone: the log that the run was recorded in is not this one, and is gone for good.

    Raises:
        ArchiveError: it is no whole export, or does not fit the archive, which was not changed.
        ArchiveBusyError: others held the archive's file, or committed to the shared archive, past the
            deadline; or the shared archive cannot be reached.
        StoreError: the store of the export refuses, or cannot be reached.
    """

    async def log_id() -> str:
        async with place.opened_log() as log:
            return await log.log_id()

    known = None
    if place.log != "local" or place.data.log.is_file():
        bring_up_to_date(place)
        known = wait_for(log_id())
    return archive.restore_run(place.archive, export, log_id=known, log_gone=log_gone)
