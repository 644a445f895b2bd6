"""An app for ``faust -A`` that is nearly always waiting for the thread that reads, which is slow to stop.

Its processors ask all the time that their partitions be read again. When one of them fails, Faust ends the
thread, and the thread never answers what is asked of it afterwards.
"""

import asyncio
from typing import Any

from unstable_stream.services.streams import faust as faust_host

_on_thread_stop = faust_host._ConsumerThread.on_thread_stop


async def _stop_slowly(self: Any) -> None:
    await _on_thread_stop(self)
    await asyncio.sleep(1.0)


faust_host._IDLE_S = 0.001  # type: ignore[misc]
faust_host._ConsumerThread.reached = lambda self, at: 1 << 60  # type: ignore[method-assign]
faust_host._ConsumerThread.on_thread_stop = _stop_slowly
app = faust_host.app
