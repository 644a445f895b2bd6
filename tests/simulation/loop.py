"""An event loop in which time, and the order of what happens, come from a seed.

Several *processes* share the loop. Each callback belongs to the process in whose context it was scheduled.
Within a process callbacks run in their order, as in any event loop; which process goes next is drawn. When
nobody can go on, the clock moves to the next timer: nothing ever waits in real time.

A process can be killed or paused between any two callbacks, which is between any two ``await`` of its code. A
killed process does nothing more: no ``finally``, no ``except``. Work for threads (``asyncio.to_thread``) is
done by the loop itself, between two drawn waits, so a process may die before the work, or before it learns of
its result.
"""

import asyncio
import contextlib
import contextvars
import gc
import heapq
import logging
import random
import secrets
import time
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, Final, TypeVar

T = TypeVar("T")

EPOCH_NS: Final = 1_800_000_000_000_000_000
"""The wall clock at the beginning of every simulation."""
_MOST_STEPS: Final = 1_500_000


class StuckError(Exception):
    """The simulation cannot go on, or would go on for ever: a service waits for what never comes."""


class Process:
    """One simulated process of the operating system."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        """How many processes were started before."""
        self.dead = False
        self.paused = False
        self.waiting: deque[asyncio.Handle] = deque()
        self.clock_offset_ns = 0
        """The error of its wall clock."""
        self.main: asyncio.Task[Any] | None = None
        self.threads: list[ThreadPoolExecutor] = []

    def __repr__(self) -> str:
        return f"{self.name}#{self.number}"


_OUTSIDE: Final = Process("outside", 0)
PROCESS: Final = contextvars.ContextVar("PROCESS", default=_OUTSIDE)
"""The process that the present code belongs to."""


def _process_of(handle: asyncio.Handle) -> Process:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context.get(PROCESS, _OUTSIDE)


class _Ready:
    """What may run now, by process. The base class adds to it and clears it."""

    def __init__(self) -> None:
        self._processes: dict[Process, None] = {}
        """Those with something to run, in the order in which they got it."""

    def append(self, handle: asyncio.Handle) -> None:
        process = _process_of(handle)
        if process.dead:
            return
        process.waiting.append(handle)
        self._processes[process] = None

    def take(self, rng: random.Random) -> tuple[Process, asyncio.Handle] | None:
        """Draw a process and return its next callback; ``None`` if nobody can go on now."""
        for process in [one for one in self._processes if one.dead or not one.waiting]:
            process.waiting.clear()
            del self._processes[process]
        able = [process for process in self._processes if not process.paused]
        if not able:
            return None
        process = able[0] if len(able) == 1 else able[int(rng.random() * len(able))]
        return process, process.waiting.popleft()

    def clear(self) -> None:
        for process in self._processes:
            process.waiting.clear()
        self._processes.clear()

    def __len__(self) -> int:
        return sum(len(process.waiting) for process in self._processes)


class _Task(asyncio.Task[T]):
    """Tasks in a set come in the order of their numbers, not of their addresses."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module. One at a time in a thread."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(f"{seed}/loop")
        self._now = 0.0
        self._ready: Any = _Ready()
        self._scheduled: list[asyncio.TimerHandle] = []
        self.steps = 0
        """Callbacks run so far."""
        self.frozen: list[asyncio.Task[Any]] = []
        """Tasks of all processes; kept, so that nothing of a dead process is closed while others live."""
        self.before_step: Callable[[Process], bool] = lambda process: True
        """Asked before each callback; ``False``: the process has just died, or was stopped for a while."""
        self.work_s: Callable[[], float] = lambda: 0.0
        """Draws how long a part of a thread's work takes, in seconds."""
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        """Return the simulated seconds since the beginning."""
        return self._now

    def _new_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        **kwargs: Any,
    ) -> asyncio.Task[T]:
        _Task.number, number = _Task.number + 1, _Task.number + 1
        task = _Task(coro, loop=loop, **kwargs)
        task.number = number
        self.frozen.append(task)
        return task

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0].when() <= self._now:
            timer = heapq.heappop(self._scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._ready.append(timer)
        chosen = self._ready.take(self._rng)
        if chosen is None:
            while self._scheduled and (
                self._scheduled[0].cancelled() or _process_of(self._scheduled[0]).dead
            ):
                heapq.heappop(self._scheduled)._scheduled = False  # type: ignore[attr-defined]
            if not self._scheduled:
                raise StuckError(f"after {self._now:.1f} s nothing is left that could happen")
            self._now = max(self._now, self._scheduled[0].when())
            return
        process, handle = chosen
        if handle.cancelled():
            return
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise StuckError(f"{_MOST_STEPS} steps in {self._now:.1f} simulated seconds: somebody spins")
        self._now += 1e-6
        if not self.before_step(process):
            if not process.dead:
                process.waiting.appendleft(handle)
                self._ready._processes[process] = None
            return
        handle._run()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        """Do the work in the loop, in one piece, with waits before and after it."""
        future: asyncio.Future[T] = self.create_future()
        process = PROCESS.get()
        if isinstance(executor, ThreadPoolExecutor) and executor not in process.threads:
            process.threads.append(executor)

        def work() -> None:
            try:
                # A plug-in's thread has an event loop of its own, so it needs a real thread.
                result = func(*args) if executor is None else executor.submit(func, *args).result()
            except Exception as error:  # noqa: BLE001 - as a thread would: the caller gets it
                self.call_later(self.work_s(), settle, future, error)
            else:
                self.call_later(self.work_s(), settle, future, result)

        self.call_later(self.work_s(), work)
        return future

    def freeze(self) -> None:
        """Let nothing run any more, and close what was left of all processes."""
        logging.getLogger("asyncio").disabled = True
        try:
            self._ready.clear()
            self._scheduled.clear()
            for task in self.frozen:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coro = task.get_coro()
                # A coroutine that waits inside `finally` refuses to be closed; it is gone the next time.
                for _ in range(3):
                    with contextlib.suppress(BaseException):
                        coro.close()
            self.frozen.clear()
            self._ready.clear()
        finally:
            logging.getLogger("asyncio").disabled = False

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""

    def _process_events(self, event_list: object) -> None:
        """There is no selector."""


def settle(future: "asyncio.Future[T]", result: T | Exception) -> None:
    """Give a future its result, or the error, unless it has one."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


@contextlib.contextmanager
def simulated_clock(loop: SimulatedLoop, seed: int) -> Iterator[None]:
    """Give all code the loop's clock, each process with its own error, and random names from the seed.

    Also keeps the garbage collector from running at moments that depend on anything else.
    """
    rng = random.Random(f"{seed}/names")
    real = (time.time_ns, time.time, time.monotonic, time.monotonic_ns, secrets.token_hex)
    collecting = gc.isenabled()

    def now_ns() -> int:
        return EPOCH_NS + round(loop.time() * 1e9) + PROCESS.get().clock_offset_ns

    gc.disable()
    time.time_ns, time.time = now_ns, lambda: now_ns() / 1e9
    time.monotonic, time.monotonic_ns = loop.time, lambda: round(loop.time() * 1e9)
    secrets.token_hex = lambda nbytes=None: rng.randbytes(nbytes or 32).hex()
    _Task.number = 0
    running = events._get_running_loop()
    try:
        yield
    finally:
        time.time_ns, time.time, time.monotonic, time.monotonic_ns, secrets.token_hex = real
        events._set_running_loop(running)
        if collecting:
            gc.enable()
