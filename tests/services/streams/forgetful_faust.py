"""``unstable-stream`` with a Faust that drops every fifth record of ``UNSTABLE_STREAM_RUN``, once."""

import os
from typing import Any

from unstable_stream.services.streams import faust as faust_host
from unstable_stream.services.streams.faust import FaustReading
from unstable_stream.ui.cli import main

_seen: set[str] = set()


async def _read(self: Any, stream: Any) -> None:
    async for event in stream.events():
        reading: FaustReading = event.message.value
        known = len(_seen)
        if reading.record.key.startswith(os.environ["UNSTABLE_STREAM_RUN"]):
            _seen.add(str(reading.record))
        if len(_seen) == known or known % 5 != 4:
            await self._waiting.put(reading)


if __name__ == "__main__":
    faust_host.FaustConsumer._read = _read  # type: ignore[method-assign]
    main()
