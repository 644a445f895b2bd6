"""A log whose topics refuse every value: what is around it has to put each into a file."""

from collections.abc import Sequence
from typing import Any

from unstable_stream.errors import RecordTooLargeError
from unstable_stream.log.port import Record
from unstable_stream.log.spill import POINTER_HEADER

__all__ = ["NothingFits"]


class NothingFits:
    """A log, producer or transaction that takes pointers only. All else is that of the one behind it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, records: Sequence[Record]) -> Any:
        for index, record in enumerate(records):
            if POINTER_HEADER not in record.headers:
                raise RecordTooLargeError(f"{record.topic} takes no values", index)
        return await self._inner.append(records)

    async def producer(self, producer_id: str) -> Any:
        return NothingFits(await self._inner.producer(producer_id))

    def transaction(self) -> Any:
        return NothingFits(self._inner.transaction())

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._inner.__aexit__(*error)
