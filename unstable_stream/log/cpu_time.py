"""CPU-seconds of this process by part of a run, for processes that do the work of several."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_spent: Final[defaultdict[str, float]] = defaultdict(float)
_lock: Final = threading.Lock()


@contextmanager
def spending(part: str) -> Iterator[None]:
    """Count what this thread computes inside the block; await nothing there: others would be counted too."""
    begin_s = time.thread_time()
    try:
        yield
    finally:
        seconds = time.thread_time() - begin_s
        with _lock:
            _spent[part] += seconds


def spent() -> dict[str, float]:
    """Return the CPU-seconds of each part since the process began."""
    with _lock:
        return dict(_spent)
