"""Tell pages when an archive has changed, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import StreamingResponse

from unstable_stream.ui.site import Shelf

__all__ = ["changes"]

_LOOK_S: Final = 0.5
_REMIND_S: Final = 15.0
"""A connection that says nothing for longer may be cut by whatever is between."""


async def _told(shelf: Shelf, request: Request) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"
    known = ""
    silent_s = 0.0
    while not await request.is_disconnected():
        state = shelf.state()
        if state != known:
            known, silent_s = state, 0.0
            yield f"event: changed\ndata: {state}\n\n"
        elif silent_s >= _REMIND_S:
            silent_s = 0.0
            yield ": still here\n\n"
        await asyncio.sleep(_LOOK_S)
        silent_s += _LOOK_S


def changes(shelf: Shelf, request: Request) -> StreamingResponse:
    """Return a stream with an event ``changed`` now, and whenever the archive is written to."""
    return StreamingResponse(_told(shelf, request), media_type="text/event-stream")
