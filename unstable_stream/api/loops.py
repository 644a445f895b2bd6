"""Coroutines for callers who have none: from a script, and from a notebook whose event loop runs already."""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, Final, TypeVar

T = TypeVar("T")

_WAITING_ITEMS: Final = 64
_LOOK_EVERY_S: Final = 0.1


def is_loop_running() -> bool:
    """Return whether this thread runs an event loop, as the cells of a notebook do."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end and return its result; in a notebook, on a thread with a loop of its own."""
    if not is_loop_running():
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "unstable-stream") as thread:
        return thread.submit(copy_context().run, asyncio.run, work).result()


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous generator, which runs on a thread and is at most 64 items ahead.

    When the caller stops early, the generator is cancelled where it waits.
    """
    waiting: queue.Queue[T | BaseException | None] = queue.Queue(_WAITING_ITEMS)
    closed = threading.Event()
    filling: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    def put(item: T | BaseException | None) -> None:
        while not closed.is_set():
            try:
                waiting.put(item, timeout=_LOOK_EVERY_S)
            except queue.Full:
                continue
            return

    async def fill() -> None:
        async with aclosing(items):
            async for item in items:
                await asyncio.to_thread(put, item)

    async def run() -> None:
        task = asyncio.ensure_future(fill())
        filling.set_result((asyncio.get_running_loop(), task))
        await asyncio.wait([task])
        put(None if task.cancelled() else task.exception())

    context = copy_context()
    thread = threading.Thread(
        target=context.run, args=(asyncio.run, run()), name="unstable-stream", daemon=True
    )
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        loop, task = filling.result()
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):  # its loop has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)
        thread.join()
