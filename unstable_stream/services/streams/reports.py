"""Reports of a process about itself, as metrics of this moment."""

import asyncio
import time
from collections.abc import Callable, Mapping

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError
from unstable_stream.events import Metrics, event_id, now_ms
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.records import record_from_event
from unstable_stream.services.streams.consumer import wait_for_stop

_log = get_logger(__name__)


def metrics_record(run_id: str, source: str, values: Mapping[str, float]) -> Record:
    """Return a record of metrics of this moment."""
    at_ms = now_ms()
    event = Metrics(
        event_id=event_id(run_id, "metrics", source, at_ms),
        run_id=run_id,
        occurred_at_ms=at_ms,
        source=source,
        values=dict(values),
    )
    return record_from_event(event)


class Reporter:
    """Publishes the values of ``measure`` under one source: when they have changed, and once a minute."""

    def __init__(
        self,
        log: EventLog,
        run_id: str,
        source: str,
        measure: Callable[[], Mapping[str, float]],
        *,
        every_s: float = 2.0,
        repeat_s: float = 60.0,
    ) -> None:
        self._event_log = log
        self._run_id = run_id
        self._source = source
        self._measure = measure
        self._every_s = every_s
        self._repeat_s = repeat_s
        self._told: dict[str, float] = {}
        self._told_at = 0.0
        self._reason = ""
        """The reason for which the last report failed; said once."""

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Report until cancelled, or until ``stop``."""
        await self.report()
        while not await wait_for_stop(stop or asyncio.Event(), self._every_s):
            await self.report()

    async def report(self) -> None:
        """Publish the present values if they have changed; a failure of the log does not end the service."""
        values = dict(self._measure())
        now = time.monotonic()
        if not values or (values == self._told and now - self._told_at < self._repeat_s):
            return
        try:
            await self._event_log.append([metrics_record(self._run_id, self._source, values)])
        except EventLogError as error:
            if str(error) != self._reason:
                _log.warning("not reported", source=self._source, reason=str(error))
            self._reason = str(error)
            return
        self._told, self._told_at, self._reason = values, now, ""
