"""Requests to end a run, or a service: first in order, and at once when asked again.

``SIGINT`` (Ctrl-C), ``SIGTERM`` and ``SIGHUP`` (the terminal was closed) are such requests. Python delivers
signals to the main thread only, so a run on another thread is asked by its caller.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from types import FrameType
from typing import Final, TypeVar

from unstable_stream.errors import RunError

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stop:
    """A request to end, which others wait for on one event loop."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """Set by the first request."""
        self.at_once = asyncio.Event()
        """Set by the second."""
        self.reason = ""
        """The reason of the first request, such as ``SIGTERM``."""
        self.signal: int | None = None
        """The signal that asked last; ``None``: no signal did."""

    def ask(self, reason: str, number: int | None = None) -> None:
        """Ask to end in order or, if that was asked before, at once; call this on the event loop."""
        self.signal = number
        if self.asked.is_set():
            self.at_once.set()
        else:
            self.reason = reason
            self.asked.set()


async def in_thread(stop: Stop, work: Callable[..., T], *arguments: object) -> T:
    """Work in a thread that nobody has to wait for, unlike that of ``asyncio.to_thread``.

    Raises:
        RunError: ``stop`` asks for the end at once.
    """
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()  # a caller that is cancelled drops the result

    def run() -> None:
        try:
            result.set_result(work(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            result.set_exception(error)

    done = asyncio.wrap_future(result)
    threading.Thread(target=copy_context().run, args=(run,), daemon=True).start()
    hurry = asyncio.ensure_future(stop.at_once.wait())
    try:
        await asyncio.wait((done, hurry), return_when=asyncio.FIRST_COMPLETED)
    finally:
        hurry.cancel()
        is_left = done.cancel()
    if is_left:
        raise RunError(f"{stop.reason}: ended before the run was recorded; nothing was written")
    return done.result()


class Requests:
    """Counts requests by signals; signals within ``apart_s`` seconds of another are one request.

    ``timeout`` sends SIGTERM twice, and a closed terminal SIGHUP: from the kernel and from the shell.
    """

    def __init__(self, apart_s: float = 1.0) -> None:
        self._apart_s = apart_s
        self._last: float | None = None
        self._count = 0

    def take(self, number: signal.Signals) -> bool:
        """Return whether the signal is another request; the third one ends this process."""
        now = time.monotonic()
        if self._last is not None and now - self._last < self._apart_s:
            return False
        self._last = now
        self._count += 1
        if self._count > 2:
            end_by(number)
        return True


@contextlib.contextmanager
def stopped_by_signals(stop: Stop, requests: Requests | None = None) -> Iterator[None]:
    """Let the signals ask for the end, in the main thread; restore the earlier handlers afterwards.

    Call it on the event loop of ``stop``. A signal that is ignored stays ignored: ``nohup`` ignores SIGHUP,
    and a shell SIGINT in its background. In another thread nothing is handled.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    counted = requests or Requests()

    def handle(number: int, _: FrameType | None) -> None:
        asked = signal.Signals(number)
        if counted.take(asked):
            loop.call_soon_threadsafe(stop.ask, asked.name, asked)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    handled = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in handled:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in handled.items():
            # None: it was set by something else than Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def end_by(number: int) -> None:
    """End this process as the signal does by default, so that its parent sees which one it was."""
    if number == signal.SIGINT and hasattr(sys, "ps1"):  # somebody types at this interpreter
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def say(text: str) -> None:
    """Print a line on the standard error, which may have been closed with its terminal."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
