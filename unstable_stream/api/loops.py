"""Coroutines for callers who have none: from a script, and from a notebook whose event loop runs already."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, TypeVar

T = TypeVar("T")

_END: Final = object()


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


def stopped() -> asyncio.Event:
    """Return the event that stops a service when it has done what there is to do now."""
    event = asyncio.Event()
    event.set()
    return event


def iterate(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the items of an asynchronous generator, which runs on a thread with a loop of its own.

    When the caller stops early, or is interrupted, the generator is cancelled where it waits.
    """
    asked: asyncio.Task[Any] | None = None

    async def following() -> T | object:
        nonlocal asked
        asked = asyncio.current_task()
        return await anext(items, _END)

    async def close() -> None:
        await items.aclose()

    runner = asyncio.Runner()
    with ThreadPoolExecutor(1, "unstable-stream") as thread:

        def call(work: Callable[..., Any], *arguments: Any) -> Any:
            return thread.submit(copy_context().run, work, *arguments).result()

        try:
            while (item := call(lambda: runner.run(following()))) is not _END:
                yield item
        finally:
            if asked is not None and not asked.done():
                asked.get_loop().call_soon_threadsafe(asked.cancel)
            call(lambda: runner.run(close()))
            call(runner.close)
