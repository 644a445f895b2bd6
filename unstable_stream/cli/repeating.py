"""Something done again and again beside a call that blocks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["every"]


@contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` every so many seconds, on a thread, as long as the block lasts."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
