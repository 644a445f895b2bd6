"""Notice that a reader stands still: records wait, brokers answer, and for long it has read none of them.

aiokafka reads in background tasks. In a thousand faults one such reader was seen to read nothing any more
after its broker had been killed and had come back, without an error, while others read on. Whoever polls it
could wait for ever.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple, TypeAlias

from unstable_stream.errors import EventLogError
from unstable_stream.log.port import Positions, TopicPartition

STANDSTILL_S: Final = 30.0
"""Seconds without a record after which a partition is looked at. A change of leaders takes about ten."""

_LOOKS: Final = 20
"""A reader that is asked seldom is not blamed: so often it had the opportunity to read."""

FindEnds: TypeAlias = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]


class _Stand(NamedTuple):
    offset: int
    since_s: float


class Standstill:
    """Watches the positions of one reader."""

    def __init__(self, find_ends: FindEnds, after_s: float = STANDSTILL_S) -> None:
        """Take what asks brokers for the ends of partitions, over other connections than the reader's."""
        self._find_ends = find_ends
        self._after_s = after_s
        self._stands: dict[TopicPartition, _Stand] = {}
        self._asked_s = 0.0
        self._asking: asyncio.Future[Mapping[TopicPartition, int]] | None = None
        self._suspects: Positions = {}
        """Partitions with records behind these positions, when the brokers were asked."""
        self._suspected_s = 0.0
        self._looks = 0

    def is_certain(self, positions: Positions) -> bool:
        """Return true if the reader stands still; it has just tried to read on from ``positions``.

        It waits for nothing.
        """
        now_s = asyncio.get_running_loop().time()
        stands, self._stands = self._stands, {}
        for at, offset in positions.items():
            before = stands.get(at)
            same = before is not None and before.offset == offset
            self._stands[at] = before if before is not None and same else _Stand(offset, now_s)
        if self._asking is not None and self._asking.done():
            asking, self._asking = self._asking, None
            self._take_in(asking, now_s)
        self._suspects = {at: offset for at, offset in self._suspects.items() if positions.get(at) == offset}
        if self._suspects:
            self._looks += 1
            return self._looks >= _LOOKS and now_s - self._suspected_s >= self._after_s / 2
        old = [at for at, stand in self._stands.items() if now_s - stand.since_s >= self._after_s]
        if old and self._asking is None and now_s - self._asked_s >= self._after_s:
            self._asked_s = now_s
            self._asking = asyncio.ensure_future(self._find_ends(old))
        return False

    def _take_in(self, asking: "asyncio.Future[Mapping[TopicPartition, int]]", now_s: float) -> None:
        try:
            ends = asking.result()
        except EventLogError:
            return  # the brokers do not answer: whoever reads waits for them
        self._suspected_s, self._looks = now_s, 0
        self._suspects = {
            at: stand.offset for at, stand in self._stands.items() if stand.offset < ends.get(at, 0)
        }

    def again(self) -> "Standstill":
        """Return one that begins to watch."""
        self.end()
        return Standstill(self._find_ends, self._after_s)

    def end(self) -> None:
        """Ask nothing more."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None
