"""Take records that are too large for their topic: the value goes into a file, a pointer onto the topic.

:class:`SpillingLog` is around every log that :mod:`.open` opens. Who reads through it gets the records as
they were appended. Appending a record that its topic refuses takes these steps:

1. the log refuses the batch as too large, and names the record; nothing of the batch is stored;
2. the value is written to ``CHECKPOINTS/RUN/spilled/SHA256``, beside the checkpoints of the record's run:
   below the ``learner.ckpt_root`` that the run was recorded with, else in the data directory;
3. the batch is appended with a pointer in place of the value.

A kill after the second step, and a transaction that does not commit, leave a file that nothing names. Whoever
appends the record again writes the same file. Nothing removes files of records that have expired.

A pointer is a record with the key, time and headers of its original and with these::

    header ce_dataref   where the value is (CloudEvents' claim check)
    value               {"spilled": 1, "uri": …, "sha256": …, "size": …}

``spilled`` is the version of this form. Saved states do not spill: they are disposable and written again and
again, and each would leave a file.
"""

import asyncio
import contextlib
import hashlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Annotated, Final, Self, TypeVar

import msgspec

from unstable_stream.errors import ConfigError, RecordTooLargeError, SpilledValueError, UnknownTopicError
from unstable_stream.events import RunResumed, RunStarted
from unstable_stream.log.forwarding import ForwardingLog
from unstable_stream.log.port import (
    Consumer,
    EventLog,
    Positions,
    Producer,
    Record,
    Start,
    StoredRecord,
    TopicPartition,
    Transaction,
    Trimmable,
)
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.records import source_header
from unstable_stream.stores import (
    LOST,
    is_address,
    joined,
    keep_value,
    kept_value,
    name_of,
    path_part,
    waiting_until,
)

__all__ = ["POINTER_HEADER", "Pointer", "SpillingLog", "pointer_in", "spilling", "whole_records"]

T = TypeVar("T")

POINTER_HEADER: Final = "ce_dataref"
_VERSION: Final = 1
_LARGEST_BYTES: Final = 1 << 30
"""A value is in memory several times over where it is made, sent and read."""
_BYTES_AT_ONCE: Final = 64 * 1024 * 1024
"""A poll returns no more spilled values than this, but for one that is larger."""
_NO_RUN: Final = "other"
"""The directory of records that name no run."""


class Pointer(msgspec.Struct, frozen=True):
    """The content of a record whose value is in a file."""

    spilled: int
    """The version of this form."""
    uri: str
    """The path or address of the file. Its last part is the digest."""
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """Of the value."""
    size: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_BYTES)]
    """Bytes of the value."""


class _AnyPointer(msgspec.Struct):
    spilled: int


_decode = msgspec.json.Decoder(Pointer).decode
_decode_version = msgspec.json.Decoder(_AnyPointer).decode


def pointer_in(record: StoredRecord) -> Pointer | None:
    """Return the pointer that a record is; ``None``: it is none.

    Raises:
        SpilledValueError: a newer version of the package wrote it.
    """
    if POINTER_HEADER not in record.headers:
        return None
    try:
        version = _decode_version(record.value).spilled
        if version == _VERSION:
            pointer = _decode(record.value)
            return pointer if name_of(pointer.uri) == pointer.sha256 else None
    except msgspec.MsgspecError:
        return None  # whoever decodes it as an event sets it aside
    raise SpilledValueError(
        f"{record}: its value is in a file, by a pointer of version {version}; this version of the package "
        f"knows version {_VERSION}: update it ({record.headers[POINTER_HEADER].decode(errors='replace')})"
    )


def spilling(log: EventLog, checkpoints: Path) -> "SpillingLog":
    """Return a log that keeps what is too large.

    Args:
        log: the log.
        checkpoints: the directory of the runs' checkpoints, for runs that name no other place.
    """
    if isinstance(log, Trimmable):
        return _TrimmableSpillingLog(log, checkpoints)
    return SpillingLog(log, checkpoints)


async def whole_records(
    log: EventLog, records: Sequence[StoredRecord]
) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """Yield records that were read past ``log`` with their values, in parts of bounded size; at least one."""
    if not isinstance(log, SpillingLog):
        yield records
        return
    while len(part := await log.whole(records)) < len(records):
        yield part
        records = records[len(part) :]
    yield part


class _Threads:
    """Work with stores beside the event loop. Nobody waits for a store that nobody wants any more."""

    def __init__(self) -> None:
        self._running: set[threading.Event] = set()

    async def run(self, work: Callable[[], T]) -> T:
        ends = threading.Event()

        def bounded() -> T:
            with waiting_until(ends):
                return work()

        self._running.add(ends)
        try:
            return await asyncio.to_thread(bounded)
        finally:
            self._running.discard(ends)
            ends.set()

    def give_up(self) -> None:
        """Let the waits that are under way end with an error."""
        for ends in self._running:
            ends.set()


class SpillingLog(ForwardingLog):
    """A log whose topics take records of up to 1 GiB, whatever their limit."""

    def __init__(self, log: EventLog, checkpoints: Path) -> None:
        """Use :func:`spilling`."""
        super().__init__(log)
        self._checkpoints = checkpoints.absolute()
        self._roots: dict[str, str | None] = {}
        """By run, the place for its checkpoints that was recorded."""
        self._threads = _Threads()

    async def append(self, records: Sequence[Record]) -> list[tuple[TopicPartition, int]]:
        """Append a batch; see the port and :meth:`fitted`."""
        return await self.fitted(self._inner.append, records)

    async def producer(self, producer_id: str) -> Producer:
        return _Producer(self, await self._inner.producer(producer_id))

    async def consumer(
        self, topics: Sequence[str], group: str | None = None, start: Start = "beginning"
    ) -> Consumer:
        return _Consumer(self, await self._inner.consumer(topics, group, start))

    async def close(self) -> None:
        self._threads.give_up()
        await super().close()

    async def fitted(
        self, append: Callable[[Sequence[Record]], Awaitable[T]], records: Sequence[Record]
    ) -> T:
        """Append records; those that are refused as too large become pointers.

        Raises:
            RecordTooLargeError: a value has more than 1 GiB, or a record is too large even as a pointer.
            StoreUnavailableError: the store of the values was away for too long; nothing was appended.
            StoreError: it refuses; nothing was appended.
        """
        records = tuple(records)  # the caller may go on using its list
        while True:
            try:
                return await append(records)
            except RecordTooLargeError as error:
                if error.index is None:
                    raise
                before, after = records[: error.index], records[error.index + 1 :]
                records = (*before, await self._spilled(records[error.index], error), *after)

    async def _spilled(self, record: Record, error: RecordTooLargeError) -> Record:
        size = len(record.value)
        if POINTER_HEADER in record.headers:
            raise error  # too large even as a pointer
        if size > _LARGEST_BYTES:
            raise RecordTooLargeError(
                f"record with key {record.key!r} for topic {record.topic!r} has a value of {size} bytes; at "
                f"most {_LARGEST_BYTES} (1 GiB) can be kept in a file beside the topic."
            ) from error
        sha256 = await self._threads.run(lambda: hashlib.sha256(record.value).hexdigest())
        uri = await self._location(record.headers.get("ce_source", b""), sha256)
        value = msgspec.json.encode(Pointer(_VERSION, uri, sha256, size))
        await self._threads.run(lambda: keep_value(uri, record.value))
        headers = {**record.headers, POINTER_HEADER: uri.encode()}
        return Record(record.topic, record.key, value, headers, record.timestamp_ms, record.partition)

    async def _location(self, source: bytes, sha256: str) -> str:
        run_id = source.decode(errors="replace").removeprefix(source_header("").decode())
        try:
            path_part(run_id, "run id")
        except ConfigError:
            run_id = _NO_RUN
        if run_id not in self._roots:
            self._roots[run_id] = await self._recorded_root(run_id)
        root = self._roots[run_id] or str(self._checkpoints)
        return joined(root, run_id, "spilled", sha256)

    async def _recorded_root(self, run_id: str) -> str | None:
        root = None
        with contextlib.suppress(UnknownTopicError):
            async for _, event in events_to_end(self._inner, [RunStarted.TOPIC], run_id=run_id):
                if isinstance(event, RunStarted | RunResumed):
                    root = event.config.get("learner", {}).get("ckpt_root")
        return root

    async def whole(
        self, records: Sequence[StoredRecord], threads: _Threads | None = None
    ) -> list[StoredRecord]:
        """Return records with their values: as many of the first as fit into memory at once, at least one.

        Raises:
            SpilledValueError: a value is not there or damaged, or a newer version of the package wrote it.
            StoreUnavailableError: the store of the values was away for too long.
            StoreError: it refuses, or the cache of this host cannot be written.
        """
        whole: list[StoredRecord] = []
        room = _BYTES_AT_ONCE
        for record in records:
            pointer = pointer_in(record)
            if pointer is None:
                whole.append(record)
                continue
            room -= pointer.size
            if room < 0 and whole:
                break
            whole.append(await (threads or self._threads).run(partial(self._fetched, record, pointer)))
        return whole

    def _fetched(self, record: StoredRecord, pointer: Pointer) -> StoredRecord:
        try:
            value = kept_value(self.located(pointer), pointer.sha256)
        except SpilledValueError as error:
            raise SpilledValueError(f"{record}: its value was too large for the topic. {error}") from error
        if value is None:
            return record  # whoever decodes it as an event sets it aside
        headers = {name: header for name, header in record.headers.items() if name != POINTER_HEADER}
        return StoredRecord(
            record.topic,
            record.partition,
            record.offset,
            record.key,
            value,
            headers,
            record.timestamp_ms,
        )

    def located(self, pointer: Pointer) -> str:
        """Return where a value is: in this data directory, if it is here, as after a backup was put back."""
        if is_address(pointer.uri):
            return pointer.uri
        here = self._checkpoints.joinpath(*PurePosixPath(pointer.uri).parts[-3:])
        return str(here) if here.is_file() or Path(f"{here}{LOST}").is_file() else pointer.uri


class _TrimmableSpillingLog(SpillingLog):
    """Around a log that deletes only when it is told to."""

    async def delete_before(self, positions: Positions) -> None:
        assert isinstance(self._inner, Trimmable)
        await self._inner.delete_before(positions)

    async def shrink(self) -> None:
        assert isinstance(self._inner, Trimmable)
        await self._inner.shrink()


class _Producer:
    def __init__(self, log: SpillingLog, inner: Producer) -> None:
        self._log = log
        self._inner = inner

    def transaction(self) -> Transaction:
        return _Transaction(self._log, self._inner.transaction())

    async def close(self) -> None:
        await self._inner.close()


class _Transaction:
    """Logs keep what is appended until the commit, so no broker waits while a value is written."""

    def __init__(self, log: SpillingLog, inner: Transaction) -> None:
        self._log = log
        self._inner = inner

    async def append(self, records: Sequence[Record]) -> None:
        await self._log.fitted(self._inner.append, records)

    async def commit_positions(self, consumer: Consumer | str, positions: Positions) -> None:
        own = consumer.inner if isinstance(consumer, _Consumer) else consumer
        await self._inner.commit_positions(own, positions)

    async def save(self, scope: str, states: Mapping[str, bytes]) -> None:
        await self._inner.save(scope, states)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


class _Consumer:
    """Reads pointers as what they point to. What does not fit into memory at once is read again later."""

    def __init__(self, log: SpillingLog, inner: Consumer) -> None:
        self.inner = inner
        self._log = log
        self._threads = _Threads()
        self._owed: dict[TopicPartition, int] = {}
        """The first record of each partition that ``inner`` has returned and this has not."""

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[StoredRecord]:
        if self._owed:
            await self.inner.seek({at: self._owed[at] for at in self._owed.keys() & self.inner.assignment()})
            self._owed = {}
        records = await self.inner.poll(max_records, timeout_s)
        if not [record for record in records if POINTER_HEADER in record.headers]:
            return records
        self._owed = _firsts(records)  # also where fetching fails or is cancelled
        whole = await self._log.whole(records, self._threads)
        self._owed = _firsts(records[len(whole) :])
        return whole

    def assignment(self) -> frozenset[TopicPartition]:
        return self.inner.assignment()

    def positions(self) -> Positions:
        positions = self.inner.positions()
        if not self._owed:
            return positions
        return {at: self._owed.get(at, offset) for at, offset in positions.items()}

    async def committed(self) -> Positions:
        return await self.inner.committed()

    async def commit(self, positions: Positions | None = None) -> None:
        await self.inner.commit(self.positions() if positions is None and self._owed else positions)

    async def seek(self, positions: Positions) -> None:
        await self.inner.seek(positions)
        for at in positions:
            self._owed.pop(at, None)

    async def close(self) -> None:
        self._threads.give_up()
        await self.inner.close()


def _firsts(records: Sequence[StoredRecord]) -> dict[TopicPartition, int]:
    return {TopicPartition(record.topic, record.partition): record.offset for record in reversed(records)}
