"""Coroutines for callers who have none: from a script, and from a notebook whose event loop runs already."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
    """Yield the items of an asynchronous generator; in a notebook it runs on a thread with a loop of its own.

    When the caller stops early, the generator is closed where it waits.
    """

    async def following() -> T | object:
        return await anext(items, _END)

    async def close() -> None:
        await items.aclose()

    with ExitStack() as opened:
        thread = opened.enter_context(ThreadPoolExecutor(1, "unstable-stream")) if is_loop_running() else None

        def call(work: Callable[..., Any], *arguments: Any) -> Any:
            if thread is None:
                return work(*arguments)
            return thread.submit(copy_context().run, work, *arguments).result()

        runner = asyncio.Runner()
        opened.callback(call, runner.close)
        opened.callback(lambda: call(runner.run, close()))
        while (item := call(runner.run, following())) is not _END:
            yield item
