"""The path between a process and a simulated log: waiting, lost requests, lost answers, slow delivery."""

import asyncio
from typing import Final, Protocol

from unstable_stream.log.port import TopicPartition

__all__ = ["CALM", "Calm", "Conditions"]


class Conditions(Protocol):
    """Decides on every request that one handle makes of its store."""

    async def request(self, what: str) -> None:
        """Wait, or raise: then the store was not asked, and nothing changed.

        Args:
            what: the operation: ``append``, ``commit``, ``transaction``, ``poll``, ``producer`` …
        """

    async def answer(self, what: str) -> None:
        """Wait, or raise: then the store did what it was asked, and the caller does not know."""

    def deliverable(self, at: TopicPartition, waiting: int) -> int:
        """Return how many of the records that wait in a partition a poll may return now, 0 to ``waiting``."""


class Calm:
    """Nothing fails, and a request takes one turn of the event loop."""

    async def request(self, what: str) -> None:
        """Let other tasks have a turn."""
        await asyncio.sleep(0)

    async def answer(self, what: str) -> None:
        """Answer at once."""

    def deliverable(self, at: TopicPartition, waiting: int) -> int:
        """Return all."""
        return waiting


CALM: Final = Calm()
