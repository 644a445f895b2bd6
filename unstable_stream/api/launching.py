"""A run on its way: launched in this thread, or on a thread of its own with an event loop of its own.

Python delivers signals to the main thread only. If a run on a thread of its own was started there, SIGTERM
and SIGHUP end it in order, and then this process, unless the program handles them itself. A program that ends
by itself, or by Ctrl-C, ends the runs that it does not wait for.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - first: what is registered later is called earlier at the end
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol

from unstable_stream.api.loops import is_loop_running
from unstable_stream.api.place import Place
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.fork import Fork
from unstable_stream.services.launch.stopping import Requests, Stop, end_by, say

if TYPE_CHECKING:
    from unstable_stream.services.launch.launcher import Launch

_HEARD_EVERY_S: Final = 0.2
"""Seconds after which a waiting thread notices Ctrl-C."""

_going: "Final[set[EndsWithProgram]]" = set()
_requests: Final = Requests()


@dataclass(frozen=True, kw_only=True)
class LaunchOrder:
    """A run to launch."""

    config: RunConfig
    place: Place
    run_id: str
    fork: Fork | None
    resume: bool
    live: bool
    """Whether it is shown."""
    on_recorded: Callable[[], None]
    """Called when its start is recorded."""


def _work(order: LaunchOrder, stop: Stop | None = None) -> "Coroutine[Any, Any, Launch]":
    """Return the launch of a run, not begun."""
    # Imported here: the launcher loads the games.
    from unstable_stream.services.launch.launcher import launch
    from unstable_stream.services.tracking.terminal_interface import Stage, watch_run

    stage = Stage()
    # A mistake that is found before the run is recorded is told alone.
    recorded = False
    early: list[str] = []

    def progress(text: str) -> None:
        if recorded:
            stage(text)
        else:
            early.append(text)

    def on_start(_: str) -> None:
        nonlocal recorded
        recorded = True
        order.on_recorded()
        for text in early if order.live else ():
            stage(text)

    return launch(
        order.config,
        order.place.data,
        resume=order.run_id if order.resume else None,
        run_id=order.run_id,
        fork=order.fork,
        watch=partial(watch_run, stage=stage, options=order.place.options) if order.live else None,
        progress=progress if order.live else lambda text: None,
        on_start=on_start,
        stop=stop,
    )


def may_run_here() -> bool:
    """Return true in the main thread without an event loop; elsewhere a run needs a thread of its own."""
    return threading.current_thread() is threading.main_thread() and not is_loop_running()


def launch_here(order: LaunchOrder) -> "Launch":
    """Run to the end in this thread, the main one, which ends the run in order at a signal."""
    return asyncio.run(_work(order))


class EndsWithProgram(Protocol):
    """A run of this process on a thread of its own."""

    @property
    def run_id(self) -> str:
        """The full id."""

    def end(self, reason: str, number: int | None = None) -> None:
        """Ask it to end in order; ``number`` is the signal that asks."""

    def join(self) -> None:
        """Wait for its end."""


def end_with_program(run: EndsWithProgram) -> None:
    """Have a run end in order with this program, until :func:`has_ended`."""
    _end_all_at_the_end()
    _going.add(run)
    end_runs_at_signals()


def has_ended(run: EndsWithProgram) -> None:
    """Forget a run that has ended."""
    _going.discard(run)


def end_runs_at_signals() -> None:
    """Let SIGTERM and SIGHUP end runs in order, where the main thread calls this and leaves them alone."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _end_by_signal)


class Launching:
    """A run that was launched on a thread of its own."""

    def __init__(self, order: LaunchOrder) -> None:
        self._result: Future[Launch] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Stop | None = None
        self._ready = threading.Event()

        async def run() -> "Launch":
            self._loop, self._stop = asyncio.get_running_loop(), Stop()
            self._ready.set()
            return await _work(replace(order, on_recorded=self._note_recorded), self._stop)

        self._thread = threading.Thread(
            target=copy_context().run, args=(self._settle, run), name=f"run {order.run_id}", daemon=True
        )
        self.run_id = order.run_id
        self._on_recorded, self._recorded = order.on_recorded, False
        self._thread.start()  # first: who ends it waits for the thread
        end_with_program(self)
        if not self.running:
            has_ended(self)

    @property
    def running(self) -> bool:
        """True while the run is running."""
        return not self._result.done()

    def stop(self, reason: str = "stop() was called", number: int | None = None) -> None:
        """Ask it to end in order, and at once if it was asked before; :meth:`wait` for it."""
        self._ready.wait()
        if self.running and self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.ask, reason, number)

    def end(self, reason: str, number: int | None = None) -> None:
        """Ask it to end in order and, if it is not recorded yet, at once."""
        self.stop(reason, number)
        if not self._recorded:
            self.stop(reason, number)

    def join(self) -> None:
        """Wait for its end, whatever it is."""
        self._thread.join()

    def wait(self, timeout_s: float | None = None) -> "Launch":
        """Wait for the end of the run and return the run, or raise its error.

        Raises:
            TimeoutError: it was still running after ``timeout_s`` seconds.
        """
        waited = 0.0
        while self.running and (timeout_s is None or waited < timeout_s):
            self._thread.join(_HEARD_EVERY_S)
            waited += _HEARD_EVERY_S
        return self._result.result(timeout=0)

    def _note_recorded(self) -> None:
        self._recorded = True
        self._on_recorded()

    def _settle(self, work: "Callable[[], Coroutine[Any, Any, Launch]]") -> None:
        try:
            self._result.set_result(asyncio.run(work()))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._result.set_exception(error)
        finally:
            self._ready.set()
            has_ended(self)


@cache
def _end_all_at_the_end() -> None:
    # Not of atexit: its functions run when threads can be given no more work.
    threading._register_atexit(_end_all)  # type: ignore[attr-defined]


def _end_all() -> None:
    going = list(_going)
    for run in going:
        say(f"the program ends: stopping run {run.run_id} in order")
        run.end("its program ended")
    for run in going:
        run.join()


def _end_by_signal(number: int, _: FrameType | None) -> None:
    if not _requests.take(signal.Signals(number)):
        return
    going = list(_going)
    for run in going:
        run.end(signal.Signals(number).name, number)
    for run in going:
        run.join()
    end_by(number)
