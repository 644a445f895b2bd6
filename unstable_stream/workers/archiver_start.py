"""Decide, before the archiver reads, on its topics, its log, and its first positions."""

import asyncio
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from unstable_stream.archive import Writer
from unstable_stream.errors import ArchiveBusyError
from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.log.topics import load_topics
from unstable_stream.log_lines import get_logger
from unstable_stream.streams.consumer import wait_for_stop
from unstable_stream.workers.archiver_divergence import divergences

__all__ = ["ARCHIVER_GROUP", "attribute", "declared_topics", "starts_of", "when_free"]

T = TypeVar("T")

ARCHIVER_GROUP: Final = "archiver"
"""The first part of the name of an archive's group; the archive's id follows."""

_TOPICS_S: Final = 5.0
_SAMPLE_RECORDS: Final = 1000
_SAMPLE_S: Final = 5.0

_log = get_logger(__name__)


async def declared_topics(log: EventLog, stop: asyncio.Event) -> list[str]:
    """Return the log's topics that we declare; wait until there is one, or ``stop`` is set."""
    declared = load_topics().keys()
    while not (found := declared & (await log.topics()).keys()) and not stop.is_set():
        _log.warning("the log has none of our topics yet; make them with unstable-stream topics create")
        await wait_for_stop(stop, _TOPICS_S)
    return sorted(found)


async def attribute(log: EventLog, names: Sequence[str], writer: Writer, stop: asyncio.Event) -> None:
    """Find out whether an archive that was upgraded from version 1 was made from this log."""
    consumer = await log.consumer(names)
    try:
        sample = await consumer.poll(_SAMPLE_RECORDS, _SAMPLE_S)
    finally:
        await consumer.close()
    if not await when_free(lambda: writer.adopt(sample), stop):
        _log.warning("the archive holds records of another log, which it does not name", log_id=writer.log_id)


async def starts_of(
    log: EventLog, writer: Writer, partitions: Collection[TopicPartition], stop: asyncio.Event
) -> Positions:
    """Return where to go on with these partitions; first take out of the archive what the log has lost.

    Raises:
        ArchiveError: the log lost records, and an older version of the package archived them.
    """
    for at, offset in sorted((await divergences(log, writer, partitions)).items()):
        position = writer.positions[at]
        removed = await when_free(functools.partial(writer.remove_from, *at, offset), stop)
        _log.warning(
            "the log lost archived records: taken out of the archive, which goes on with what the log has",
            partition=str(at),
            offsets=f"{offset} to {position - 1}",
            records=removed.records,
            saved_to=removed.saved_to,
        )
    archived = writer.positions
    starts: dict[TopicPartition, int] = {}
    for topic in {at.topic for at in partitions}:
        beginnings = await log.beginning_offsets(topic)
        for at in beginnings.keys() & set(partitions):
            starts[at] = max(beginnings[at], archived.get(at, 0))
    before = {at: archived.get(at, 0) for at in starts}
    missing = {(*at,): (before[at], begin) for at, begin in starts.items() if before[at] < begin}
    if missing:
        await when_free(functools.partial(writer.note_missing, missing), stop)
    for where, (first, begin) in sorted(missing.items()):
        # Before the archive was made, deleting was nothing to worry about.
        tell = _log.error if first else _log.warning
        tell(
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
