"""Look at a run at two of its learner updates, and count the steps trained between them."""

from collections.abc import Callable
from typing import Generic, TypeVar

from unstable_stream.events import LearnerUpdate
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import readable_events

Look = TypeVar("Look")


class BetweenUpdates(Generic[Look]):
    """Give :meth:`watch` to :func:`~unstable_stream.services.launch.launcher.launch`."""

    def __init__(
        self,
        first: int,
        last: int,
        look: Callable[[], Look],
        on_update: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Look once at update number ``first``, counted from 1, and once at ``last``."""
        self._first, self._last = first, last
        self._look = look
        self._on_update = on_update
        self.looks: list[Look] = []
        """What was seen, at most twice."""
        self.steps = 0
        """Steps trained after the first look."""

    async def watch(self, log: EventLog, *_: object) -> None:
        """Follow the updates until it is cancelled."""
        consumer = await log.consumer([LearnerUpdate.TOPIC])
        number = 0
        while True:
            for event in readable_events(await consumer.poll(timeout_s=0.2)):
                if isinstance(event, LearnerUpdate):
                    number += 1
                    self._on_update(number)
                    if number > self._first:
                        self.steps += len(event.step_ids)
                    if number in (self._first, self._last):
                        self.looks.append(self._look())
