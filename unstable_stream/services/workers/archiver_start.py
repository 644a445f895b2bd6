"""Decide, before the archiver reads, on its topics and its first positions."""

import asyncio
import functools
from collections.abc import Callable, Collection
from typing import Final, TypeVar

from unstable_stream.archive import ArchiveWriter
from unstable_stream.console import get_logger
from unstable_stream.errors import ArchiveAheadError, ArchiveBusyError
from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.log.topics import load_topics
from unstable_stream.services.streams.consumer import wait_for_stop

T = TypeVar("T")

ARCHIVER_GROUP: Final = "archiver"
"""The first part of the name of an archive's group; the archive's id follows."""

_TOPICS_S: Final = 5.0

_log = get_logger(__name__)


async def declared_topics(log: EventLog, stop: asyncio.Event) -> list[str]:
    """Return the log's topics that we declare; wait until there is one, or ``stop`` is set."""
    declared = load_topics().keys()
    while not (found := declared & (await log.topics()).keys()) and not stop.is_set():
        _log.warning("the log has none of our topics yet; make them with unstable-stream topics create")
        await wait_for_stop(stop, _TOPICS_S)
    return sorted(found)


async def starts_of(
    log: EventLog, writer: ArchiveWriter, partitions: Collection[TopicPartition], stop: asyncio.Event
) -> Positions:
    """Return where to go on with these partitions; note in the archive what was deleted before.

    Raises:
        ArchiveAheadError: the log has lost records that were archived.
    """
    archived = writer.positions
    starts: dict[TopicPartition, int] = {}
    lost: list[str] = []
    for topic in sorted({at.topic for at in partitions}):
        beginnings, ends = await log.beginning_offsets(topic), await log.end_offsets(topic)
        for at in sorted(beginnings.keys() & set(partitions)):
            position = archived.get(at, 0)
            starts[at] = max(beginnings[at], position)
            if position > ends[at]:
                lost.append(f"{at}@{position - 1} is archived, and the log ends before {at}@{ends[at]}")
    if lost:
        more = f", and so in {len(lost) - 1} partitions more" if lost[1:] else ""
        raise ArchiveAheadError(
            f"the log {writer.log_id} has lost records that the archive {writer.path} has: {lost[0]}{more}. "
            "Restore the log from a backup; or fill a new archive from what it has now, with unstable-stream "
            "archive --rebuild, or another address if it is a shared one"
        )
    before = {at: archived.get(at, 0) for at in starts}
    missing = {(*at,): (before[at], begin) for at, begin in starts.items() if before[at] < begin}
    if missing:
        await when_free(functools.partial(writer.note_missing, missing), stop)
    for where, (first, begin) in sorted(missing.items()):
        # Before the archive was made, deleting was nothing to worry about.
        report = _log.error if first else _log.warning
        report(
            "records were deleted before they could be archived: noted in missing_records",
            partition=str(TopicPartition(*where)),
            offsets=f"{first} to {begin - 1}",
        )
    return starts


async def when_free(work: Callable[[], T], stop: asyncio.Event) -> T:
    """Do ``work`` on the archive in a thread; try again while another process has locked the archive, or its
    store is away.
    """
    while True:
        try:
            return await asyncio.to_thread(work)
        except ArchiveBusyError as error:
            if stop.is_set():
                raise  # the records stay in the log; the next start archives them
            _log.warning("the archive cannot be used now, trying again", reason=str(error))
