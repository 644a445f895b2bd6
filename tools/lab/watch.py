"""What a run of the lab records, seen while it is recorded: its updates, and who waits for the store."""

import asyncio
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unstable_stream.errors import EventLogError
from unstable_stream.events import Event, LearnerUpdate, Metrics, RunFinished, RunResumed, RunStarted
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import Positions
from unstable_stream.log.reading import readable_events

_TOPICS: Final = (RunStarted.TOPIC, LearnerUpdate.TOPIC, Metrics.TOPIC)


@dataclass(frozen=True)
class Seen:
    """An update, and when it was seen."""

    update: int
    at: float
    """Of the monotonic clock, in seconds."""


class Watch:
    """Reads the log of the lab's only run in a thread of its own; use as ``with``."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._positions: Positions = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read()), daemon=True)
        self.run_id = ""
        """Empty: it has not been recorded yet."""
        self.updates: list[Seen] = []
        self.trained: Counter[str] = Counter()
        """How often each step was trained on."""
        self.resumptions = 0
        self.outcomes: list[str] = []
        """How it ended each time: ``completed``, ``stopped`` or ``failed``."""
        self.store_waits_s: dict[str, float] = {}
        """By service, how long it has waited for the store now."""

    @property
    def trained_twice(self) -> list[str]:
        """Steps that more than one recorded update was made of."""
        return [step for step, times in self.trained.items() if times > 1]

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    async def _read(self) -> None:
        while not self._ends.is_set():
            try:
                await self._read_on()
            except EventLogError:  # the brokers are what a fault was done to
                await asyncio.sleep(0.5)

    async def _read_on(self) -> None:
        async with opened_log(self._location, Path(os.devnull)) as log:
            consumer = await log.consumer(_TOPICS)
            try:
                if self._positions:
                    await consumer.seek(self._positions)
                while not self._ends.is_set():
                    records = await consumer.poll(timeout_s=0.5)
                    for event in readable_events(records):
                        self._take(event)
                    self._positions = consumer.positions()
            finally:
                await consumer.close()

    def _take(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self.run_id = event.run_id
        elif isinstance(event, RunResumed):
            self.resumptions += 1
        elif isinstance(event, RunFinished):
            self.outcomes.append(event.outcome)
        elif isinstance(event, LearnerUpdate):
            self.trained.update(event.step_ids)
            self.updates.append(Seen(event.update, time.monotonic()))
        elif isinstance(event, Metrics):
            for name, value in event.values.items():
                parts = name.split("/")
                if parts[0] == "stores" and parts[-1] == "wait_s":
                    self.store_waits_s[parts[1]] = value
