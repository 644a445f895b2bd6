"""Run SQLite on two threads for each open log, so that reads never wait for a writer's fsync.

The write thread commits everything that is waiting in one SQLite transaction (group commit): many tasks
that append one record each share an fsync and the statements, and each of their batches stays atomic.
"""

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from unstable_stream.errors import EventLogError, LogUnavailableError
from unstable_stream.log.cpu_time import spending
from unstable_stream.log.local.database import begin_write, bound_wal, explain

T = TypeVar("T")

_Outcome: TypeAlias = "tuple[asyncio.Future[Any], Any, BaseException | None]"

_MOST_JOBS_IN_A_COMMIT: Final = 256
_WAL_CHECK_S: Final = 0.5


class _Uncancelled(asyncio.Future[T]):
    """A future of work that cannot be called back: a task that waits for it is cancelled once it is done.

    It costs a fraction of what :func:`asyncio.shield` does, and every append waits for one.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Refuse; the task remembers that it was cancelled."""
        return False


@dataclass(slots=True)
class _Job:
    future: "asyncio.Future[Any]"
    work: Callable[[sqlite3.Connection], Any] | None
    prepare: Callable[[sqlite3.Connection], None] | None = None
    wakes: Callable[[Any], bool] | None = None


class _Thread:
    """Runs jobs in order on a thread that owns a connection; a log nobody closed ends with its process."""

    def __init__(self, name: str, path: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._opened: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def start(self) -> None:
        """Open the connection; raises what opening raises."""
        self._thread.start()
        self._opened.result()

    async def close(self) -> None:
        """Finish the jobs at hand and close the connection."""
        self.abandon()
        ended: _Uncancelled[None] = _Uncancelled(loop=asyncio.get_running_loop())
        self._ended.add_done_callback(lambda _: self._deliver([(ended, None, None)]))
        await ended

    def abandon(self) -> None:
        """Close without waiting."""
        if not self._closing:
            self._closing = True
            self._inbox.put(None)

    def _submit(self, job: _Job) -> None:
        if self._closing:
            raise EventLogError(f"event log {self._path} is closed; open it again to go on.")
        self._inbox.put(job)

    def _serve(self) -> None:
        try:
            connection = self._connect()
        except EventLogError as error:
            self._ended.set_result(None)
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        closing = False
        while not closing:
            job = self._inbox.get()
            jobs: list[_Job] = []
            while job is not None:
                jobs.append(job)
                if len(jobs) == _MOST_JOBS_IN_A_COMMIT:
                    break
                try:
                    job = self._inbox.get_nowait()
                except queue.Empty:
                    break
            closing = job is None
            if jobs:
                with spending("log"):
                    _, broken = self._attempt(partial(self._run, jobs=jobs), connection)
                if broken is not None:  # nobody may wait for ever, whatever broke
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    self._deliver([(job.future, None, broken) for job in jobs])
        connection.close()
        self._ended.set_result(None)

    def _run(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        raise NotImplementedError

    def _attempt(
        self, work: Callable[[sqlite3.Connection], Any], connection: sqlite3.Connection
    ) -> tuple[Any, BaseException | None]:
        try:
            return work(connection), None
        except sqlite3.Error as error:
            explained = explain(error, self._path)
            explained.__cause__ = error
            return None, explained
        except BaseException as error:  # noqa: BLE001 - not swallowed: raised where the job is awaited
            return None, error

    def _deliver(self, outcomes: list[_Outcome]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
        for outcome in outcomes:
            by_loop.setdefault(outcome[0].get_loop(), []).append(outcome)
        for loop, own in by_loop.items():
            with suppress(RuntimeError):  # the event loop is gone, and with it all who waited
                loop.call_soon_threadsafe(_resolve, own)


def _resolve(outcomes: list[_Outcome]) -> None:
    for future, result, error in outcomes:
        if future.done():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class ReadThread(_Thread):
    """Runs queries one after another."""

    def run(self, work: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Run ``work`` and return a future of its result; cancelling the future only drops the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(_Job(future, work))
        return future

    def _run(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        for job in jobs:
            if job.work is None or job.future.cancelled():
                continue
            result, error = self._attempt(job.work, connection)
            self._deliver([(job.future, result, error)])


class WriteThread(_Thread):
    """Runs changes inside transactions; jobs that wait at the same time share one."""

    def __init__(
        self,
        name: str,
        path: str,
        connect: Callable[[], sqlite3.Connection],
        busy_timeout_s: float,
        wake_readers: Callable[[], None],
        begun: Callable[[], None],
    ) -> None:
        """``begun`` is called in this thread once a transaction holds the write lock."""
        super().__init__(name, path, connect)
        self._busy_timeout_s = busy_timeout_s
        self._wake_readers = wake_readers
        self._begun = begun
        self._wal_check_at = 0.0

    async def run(
        self,
        work: Callable[[sqlite3.Connection], T],
        prepare: Callable[[sqlite3.Connection], None] | None = None,
        wakes: Callable[[T], bool] | None = None,
    ) -> T:
        """Run ``work`` in a transaction and return its result once that is durable.

        Args:
            work: changes the database and nothing else: it is run again alone where other work that shared
                its transaction failed. An exception takes back its own changes and nobody else's.
            prepare: runs before, once, outside the transaction, so that the write lock is held only briefly.
            wakes: whether waiting consumers must look again, by the result; ``None``: no.

        Raises:
            LogUnavailableError: the write lock was not to be had in time; nothing was changed.
        """
        future: _Uncancelled[T] = _Uncancelled(loop=asyncio.get_running_loop())
        self._submit(_Job(future, work, prepare, wakes))
        return await future

    async def run_outside(self, prepare: Callable[[sqlite3.Connection], None]) -> None:
        """Run ``prepare`` alone, outside any transaction."""
        future: _Uncancelled[None] = _Uncancelled(loop=asyncio.get_running_loop())
        self._submit(_Job(future, None, prepare))
        await future

    def _run(self, connection: sqlite3.Connection, jobs: list[_Job]) -> None:
        outcomes: list[_Outcome] = []
        ready: list[_Job] = []
        for job in jobs:
            error = self._attempt(job.prepare, connection)[1] if job.prepare is not None else None
            if error is None and job.work is not None:
                ready.append(job)
            else:
                outcomes.append((job.future, None, error))
        done = self._transact(connection, ready) if ready else []
        self._deliver(outcomes + done)
        if any(
            job.wakes is not None and error is None and job.wakes(result)
            for job, (_, result, error) in zip(ready, done, strict=True)
        ):
            self._wake_readers()
        if time.monotonic() >= self._wal_check_at:
            self._attempt(lambda c: bound_wal(c, self._path), connection)
            self._wal_check_at = time.monotonic() + _WAL_CHECK_S

    def _transact(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[_Outcome]:
        """Run jobs in one transaction; if one fails, nothing of it stays and each has one of its own."""
        results, error = self._attempt(lambda c: self._commit(c, jobs), connection)
        if error is None:
            return [(job.future, result, None) for job, result in zip(jobs, results, strict=True)]
        if len(jobs) == 1 or isinstance(error, LogUnavailableError):
            return [(job.future, None, error) for job in jobs]
        return [outcome for job in jobs for outcome in self._transact(connection, [job])]

    def _commit(self, connection: sqlite3.Connection, jobs: list[_Job]) -> list[Any]:
        begin_write(connection, self._busy_timeout_s)
        self._begun()
        try:
            results = [job.work(connection) for job in jobs if job.work is not None]
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        return results
