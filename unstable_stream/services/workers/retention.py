"""Delete expired records from a log that does not do so itself.

Kafka applies a topic's ``retention_ms`` by itself; the local log is a file and does not. So the archiver,
which knows what is archived, deletes from it. A record is deleted if all of this holds:

1. its topic has a retention, and the record and all before it in the partition are older;
2. the archive has stored it;
3. no consumer group has yet to read it; groups of finished runs and of archives do not count.

SQLite uses the space again; the file itself does not shrink.

On any log it forgets the saved states of runs that ended long ago, or were killed and never resumed
(:mod:`unstable_stream.services.streams.finished_states`).
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError
from unstable_stream.log.port import EventLog, Positions, TopicPartition, Trimmable
from unstable_stream.runs.history import read_history
from unstable_stream.services.streams.finished_states import finished_states, forget_states

ARCHIVER_GROUP: Final = "archiver"
"""The first part of the name of an archive's group; the archive's id follows."""
_STATES_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""Milliseconds after the end of a run: one that is resumed soon goes on at once."""
_STATES_EVERY_S: Final = 3600.0
_IDLE_MS: Final = 30 * 24 * 3600 * 1000
"""Milliseconds without a record after which a run that never ended counts as killed."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Expired:
    """The expired records of one partition."""

    at: TopicPartition
    begin: int
    """The first offset there is."""
    until: int
    """The offset before which records may be deleted; ``begin``: none of them."""
    held_back: int = 0
    """Expired records that must stay."""
    held_by: str = ""
    """The archive, or the name of the group, that has yet to read these."""

    @property
    def records(self) -> int:
        """The number of records to delete."""
        return self.until - self.begin


async def expired_records(
    log: EventLog, archived: Mapping[TopicPartition, int], now_ms: int, ignored_groups: Collection[str] = ()
) -> list[Expired]:
    """Return what has expired, of each partition with such records, sorted.

    Args:
        log: a log that keeps each record until it is asked to delete it.
        archived: the offset of the next record to archive; a partition not in it has nothing archived.
        now_ms: the time, Unix milliseconds.
        ignored_groups: groups that hold back nothing.
    """
    limited = {
        name: spec.retention_ms
        for name, spec in (await log.topic_settings()).items()
        if spec.cleanup_policy == "delete" and spec.retention_ms is not None
    }
    needed = await _needed_by_groups(log, ignored_groups)
    found = []
    for topic, retention_ms in sorted(limited.items()):
        begins = await log.beginning_offsets(topic)
        old = await log.offsets_for_time(topic, now_ms - retention_ms)
        for at, begin in sorted(begins.items()):
            limits = [(archived.get(at, 0), "the archive"), *needed.get(at, ())]
            limit, holder = min(limits)
            until = max(begin, min(old[at], limit))
            if old[at] > begin:
                held = old[at] - until
                found.append(Expired(at, begin, until, held, holder if held else ""))
    return found


async def _needed_by_groups(
    log: EventLog, ignored: Collection[str]
) -> dict[TopicPartition, list[tuple[int, str]]]:
    finished = (await read_history(log)).finished()  # a run that was resumed is none of them
    needed: dict[TopicPartition, list[tuple[int, str]]] = {}
    for group in await log.groups():
        if group in ignored or group.startswith(f"{ARCHIVER_GROUP}-") or group.partition("/")[2] in finished:
            continue
        for at, position in (await log.committed_positions(group)).items():
            needed.setdefault(at, []).append((position, group))
    return needed


class Retention:
    """Applies retention from time to time, in a service that knows what is archived."""

    def __init__(self, log: EventLog, *, first_s: float = 60.0, interval_s: float = 600.0) -> None:
        """Seconds: ``first_s`` until the first time, ``interval_s`` between two."""
        self._log = log
        self._interval_s = interval_s
        self._next_s = self._states_next_s = time.monotonic() + first_s
        self._held: Sequence[Expired] = ()

    async def apply(self, archived: Positions) -> None:
        """Delete what has expired, if it is time."""
        if time.monotonic() >= self._states_next_s:
            await self._forget_states()
            self._states_next_s = time.monotonic() + _STATES_EVERY_S
        if isinstance(self._log, Trimmable) and time.monotonic() >= self._next_s:
            await self._trim(archived)
            self._next_s = time.monotonic() + self._interval_s

    async def _forget_states(self) -> None:
        now_ms = int(time.time() * 1000)
        try:
            finished = await finished_states(
                self._log, ended_before_ms=now_ms - _STATES_KEPT_MS, now_ms=now_ms, idle_ms=_IDLE_MS
            )
            forgotten = await forget_states(self._log, finished)
        except EventLogError as error:  # e.g. another archiver does the same now
            _log.warning("saved states of finished runs are forgotten later", reason=str(error))
            return
        if forgotten:
            _log.info("saved states of finished runs forgotten", states=forgotten)

    async def _trim(self, archived: Positions) -> None:
        assert isinstance(self._log, Trimmable), "apply() asks"
        found = await expired_records(self._log, archived, now_ms=int(time.time() * 1000))
        await self._log.delete_before({each.at: each.until for each in found if each.records})
        for each in found:
            if each.records:
                _log.info(
                    "expired records deleted from the log",
                    partition=str(each.at),
                    offsets=f"{each.begin} to {each.until - 1}",
                )
        held = [each for each in found if each.held_back and each.held_by != "the archive"]
        for each in held:
            if (each.at, each.held_by) not in {(before.at, before.held_by) for before in self._held}:
                _log.warning(
                    "expired records stay in the log: a group has not read them. If it is needed no more: "
                    "unstable-stream topics trim --ignore-group",
                    group=each.held_by,
                    partition=str(each.at),
                    records=each.held_back,
                )
        self._held = held
