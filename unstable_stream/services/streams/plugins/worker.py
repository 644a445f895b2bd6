"""Run a plug-in's code on its own thread and event loop, so that slow code does not hold up anything else.

All work of a plug-in happens on this one thread: opening, every event, its file of states, stopping. The file
is SQLite's, beside the log. State and position of a partition are stored together. So a restored state is
always the fold of exactly the events before its position. :func:`metrics_of` runs a plug-in over events in
memory, without a log, for its tests.
"""

import asyncio
import contextlib
import inspect
import sqlite3
import time
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from unstable_stream.errors import EventError, PluginError
from unstable_stream.events import Event, Metrics, event_type
from unstable_stream.log.port import StoredRecord, TopicPartition
from unstable_stream.log.records import event_from_record, source_header
from unstable_stream.services.streams.plugins.declare import Context, Handler, Plugin, Position

T = TypeVar("T")

_BUSY_S: Final = 20.0
_BUSY_PAUSE_S: Final = 0.01
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS positions (
    log_id TEXT, consumer_group TEXT, topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL,
    PRIMARY KEY (log_id, consumer_group, topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS states (
    log_id TEXT, consumer_group TEXT, topic TEXT, partition INTEGER, run_id TEXT, state BLOB NOT NULL,
    PRIMARY KEY (log_id, consumer_group, topic, partition, run_id)
) WITHOUT ROWID;
"""
_PACKAGE: Final = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of one record."""

    index: int
    """The index of the record in the batch."""
    reason: str
    """The exception, its message, and where it was raised."""
    unreadable: bool
    """True: the record is no event, and the plug-in never saw it."""


class Attempt(NamedTuple):
    """The result of a batch."""

    metrics: Sequence[Metrics]
    handled: int
    """The number of events that the plug-in handled."""
    changed: Mapping[TopicPartition, Mapping[str, bytes]]
    """The states that may have changed, as bytes, by partition and run."""
    failure: Failure | None
    """The reason for an early stop; the states are then as before the batch."""


class PluginWorker:
    """One running plug-in, with its states in memory."""

    def __init__(self, plugin: Plugin, run_id: str | None) -> None:
        """Prepare the thread; the plug-in receives only events of ``run_id``, or of all runs if it is
        ``None``.
        """
        self._plugin = plugin
        self._source = None if run_id is None else source_header(run_id)
        self._run_id = run_id
        self._types = tuple(f"unstable_stream.{event_type(kind)}.v".encode() for kind in plugin.event_types)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=plugin.source)
        self._runner = asyncio.Runner()
        self._handler: Handler | None = None
        self._states: dict[TopicPartition, dict[str, Any]] = {}
        self._saved: dict[TopicPartition, dict[str, bytes]] = {}
        """The same states as bytes, as before the current batch."""

    async def do(self, work: Callable[[], T]) -> T:
        """Run blocking work on the plug-in's thread."""
        # In a copy of the context, which holds the permission to load code.
        return await asyncio.get_running_loop().run_in_executor(self._thread, copy_context().run, work)

    async def start(self) -> None:
        """Open the plug-in; raises :class:`PluginError` if that fails."""
        await self._run(self._start)

    async def close(self) -> None:
        """Stop the plug-in and the thread."""
        try:
            await self._run(self._stop)
        finally:
            await self.do(self._runner.close)
            self._thread.shutdown(wait=False)

    async def attempt(self, records: Sequence[StoredRecord]) -> Attempt:
        """Pass the events in ``records`` to the plug-in; at the first failure, undo the batch and stop."""
        return await self._run(lambda: self._attempt(records))

    def restore(self, where: TopicPartition, states: Mapping[str, bytes]) -> None:
        """Take over a partition with its stored states, by run."""
        self._saved[where] = dict(states)
        self._states[where] = {}

    def forget(self, where: TopicPartition) -> None:
        """Drop a partition's states."""
        self._saved.pop(where, None)
        self._states.pop(where, None)

    # -- on the thread ------------------------------------------------------------------------

    async def _run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.do(lambda: self._runner.run(make()))

    async def _start(self) -> None:
        try:
            handler = self._plugin.open()
            await _call_if_there(handler, "start")
        except Exception as error:
            raise PluginError(f"plug-in {self._plugin.name!r} does not start: {_reason(error)}") from error
        self._handler = handler

    async def _stop(self) -> None:
        if self._handler is None:
            return
        try:
            await _call_if_there(self._handler, "stop")
        except Exception as error:
            raise PluginError(f"plug-in {self._plugin.name!r} failed to stop: {_reason(error)}") from error

    async def _attempt(self, records: Sequence[StoredRecord]) -> Attempt:
        assert self._handler is not None
        metrics: list[Metrics] = []
        touched: dict[TopicPartition, dict[str, Any]] = {}
        handled = 0
        handle = self._handler.handle
        for index, record in enumerate(records):
            where = TopicPartition(record.topic, record.partition)
            try:
                event = self._event_of(record)
            except EventError as error:
                return self._undone(touched, Failure(index, f"{type(error).__name__}: {error}", True))
            if event is None:
                continue
            try:
                context = self._context(event, record, where, touched)
                result = handle(event, context)
                if inspect.isawaitable(result):
                    await result
            except PluginError:
                raise  # a mistake in the plug-in's declaration, the same for every event
            except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; the record is rejected
                return self._undone(touched, Failure(index, _reason(error), False))
            metrics += context.emitted
            handled += 1
        changed: dict[TopicPartition, dict[str, bytes]] = {}
        codec = self._plugin.codec
        if codec is not None:
            for where, states in touched.items():
                changed[where] = {run_id: codec.encode(state) for run_id, state in states.items()}
                self._saved[where].update(changed[where])
        return Attempt(metrics, handled, changed, None)

    def _event_of(self, record: StoredRecord) -> Event | None:
        """Return the event to handle; ``None`` if the plug-in does not want it."""
        if self._source is not None and record.headers.get("ce_source", self._source) != self._source:
            return None
        kind = record.headers.get("ce_type")
        # The header saves decoding unwanted records. A record without the header is decoded.
        if kind is not None and self._types and not kind.startswith(self._types):
            return None
        event = event_from_record(record)
        if self._run_id is not None and event.run_id != self._run_id:
            return None
        return event if self._plugin.wants(event) else None

    def _context(
        self,
        event: Event,
        record: StoredRecord,
        where: TopicPartition,
        touched: dict[TopicPartition, dict[str, Any]],
    ) -> Context:
        position = Position(record.topic, record.partition, record.offset)
        codec = self._plugin.codec
        if codec is None:
            return Context(self._plugin.name, event, position)
        states = self._states.setdefault(where, {})
        state = states.get(event.run_id)
        if state is None:
            saved = self._saved.setdefault(where, {}).get(event.run_id)
            state = states[event.run_id] = codec.fresh() if saved is None else codec.decode(saved)
        touched.setdefault(where, {})[event.run_id] = state
        return Context(self._plugin.name, event, position, state)

    def _undone(self, touched: Mapping[TopicPartition, Mapping[str, Any]], failure: Failure) -> Attempt:
        # The next event decodes these states again from the bytes saved before the batch.
        for where, states in touched.items():
            for run_id in states:
                del self._states[where][run_id]
        return Attempt((), 0, {}, failure)


def _reason(error: Exception) -> str:
    """Return the exception, its message, and the plug-in's line that raised it or led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    own = theirs[0] if theirs else frames[-1]
    deepest = theirs[-1] if theirs else frames[-1]
    where = f"{Path(own.filename).name}:{own.lineno} in {own.name}"
    if deepest is not own:
        where += f", from {Path(deepest.filename).name}:{deepest.lineno} in {deepest.name}"
    text = str(error)
    return f"{type(error).__name__}{': ' if text else ''}{text} (at {where})"


# -- the file of states ----------------------------------------------------------------------------


class Saved(NamedTuple):
    """The stored position and states of one partition."""

    next_offset: int
    states: Mapping[str, bytes]
    """States by run id."""


class PluginStates:
    """The states of one plug-in's group on one log. Its calls block; only one thread may use it."""

    def __init__(self, path: Path, log_id: str, group: str) -> None:
        """Open the file, or create it with its directory; raises :class:`PluginError` if that fails."""
        self._path = path
        self._key = (log_id, group)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            self._keep_a_wal()
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise PluginError(
                f"cannot keep the plug-in's state in {path}: {error}; name another directory with --data"
            ) from error

    def _keep_a_wal(self) -> None:
        # SQLite does not wait by itself here: another member that creates the same file may hold its lock.
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                self._database.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
            time.sleep(_BUSY_PAUSE_S)

    def load(self, where: TopicPartition) -> Saved | None:
        """Return the stored position and states of a partition; ``None`` if there are none."""
        key = (*self._key, *where)
        same = "log_id = ? AND consumer_group = ? AND topic = ? AND partition = ?"
        with self._transaction("cannot read"):
            row = self._database.execute(f"SELECT next_offset FROM positions WHERE {same}", key).fetchone()
            states = self._database.execute(f"SELECT run_id, state FROM states WHERE {same}", key).fetchall()
        return None if row is None else Saved(row[0], dict(states))

    def save(self, partitions: Mapping[TopicPartition, Saved]) -> None:
        """Store the given positions and states in one transaction; other states stay unchanged."""
        with self._transaction("cannot write"):
            self._database.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)",
                [(*self._key, *where, saved.next_offset) for where, saved in partitions.items()],
            )
            self._database.executemany(
                "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (*self._key, *where, run_id, state)
                    for where, saved in partitions.items()
                    for run_id, state in saved.states.items()
                ],
            )

    def forget(self) -> None:
        """Delete everything that this group has stored for this log."""
        with self._transaction("cannot write"):
            for table in ("positions", "states"):
                self._database.execute(
                    f"DELETE FROM {table} WHERE log_id = ? AND consumer_group = ?", self._key
                )

    def forget_runs(self, run_ids: Collection[str]) -> None:
        """Delete what any group has stored of these runs, and the positions of groups of one of them."""
        groups = [(f"plugin/{self._path.stem}/{run_id}",) for run_id in run_ids]
        with self._transaction("cannot write"):
            self._database.executemany("DELETE FROM states WHERE run_id = ?", [(each,) for each in run_ids])
            self._database.executemany("DELETE FROM positions WHERE consumer_group = ?", groups)

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _transaction(self, failed: str) -> Iterator[None]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise PluginError(f"{failed} the plug-in's state in {self._path}: {error}") from error


# -- in memory ------------------------------------------------------------------------------------


def metrics_of(plugin: Plugin, events: Iterable[Event]) -> list[Metrics]:
    """Return the metrics that the plug-in emits for ``events``. Its exceptions are not caught.

    Each topic is one partition. Do not call it inside a running event loop.
    """
    return asyncio.run(_rehearse(plugin, events))


async def _rehearse(plugin: Plugin, events: Iterable[Event]) -> list[Metrics]:
    handler = plugin.open()
    emitted: list[Metrics] = []
    states: dict[tuple[str, str], Any] = {}
    offsets: dict[str, int] = {}
    await _call_if_there(handler, "start")
    for event in events:
        topic = event.TOPIC
        position = Position(topic, 0, offsets.setdefault(topic, 0))
        offsets[topic] += 1
        if topic not in plugin.topics or not plugin.wants(event):
            continue
        if plugin.state is None:
            context = Context(plugin.name, event, position)
        else:
            where = (topic, event.run_id)
            if where not in states:
                states[where] = plugin.state()
            context = Context(plugin.name, event, position, states[where])
        result = handler.handle(event, context)
        if inspect.isawaitable(result):
            await result
        emitted += context.emitted
    await _call_if_there(handler, "stop")
    return emitted


async def _call_if_there(handler: object, method: str) -> None:
    """Call a method, sync or ``async``, if the plug-in's class has it."""
    called = getattr(handler, method, None)
    if called is not None:
        result = called()
        if inspect.isawaitable(result):
            await result
