"""Reports of services about themselves on topic ``metrics``, for a monitor on any machine.

The launcher reports which services are up and the number of restarts of each. The archiver reports the number
of records it has stored. A report follows each change, and repeats once a minute for readers that came later.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError
from unstable_stream.events import Metrics, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event

LAUNCHER: Final = "launcher"
ARCHIVER: Final = "archiver"
_log = get_logger(__name__)

_ARCHIVED: Final = "archive/records"


class Service(Protocol):
    """The launcher's view of a service."""

    @property
    def name(self) -> str:
        """The name of the service."""

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""

    @property
    def restarts(self) -> int:
        """The number of restarts."""

    @property
    def trouble(self) -> str:
        """The latest death and what is done about it, in one line; empty if it never died."""


def service_values(services: Mapping[str, Service]) -> dict[str, float]:
    """Return the launcher's report about its services, as metric values."""
    values: dict[str, float] = {}
    for name, service in sorted(services.items()):
        values[f"services/{name}/up"] = float(service.pid is not None)
        values[f"services/{name}/restarts"] = float(service.restarts)
    return values


def read_services(event: Metrics) -> dict[str, tuple[float, float]]:
    """Return, by service, 1 (up) or 0 (down), and the restarts, from the launcher's report."""
    names = [
        name.split("/")[1] for name in event.values if name.startswith("services/") and name.endswith("/up")
    ]
    return {
        name: (event.values[f"services/{name}/up"], event.values.get(f"services/{name}/restarts", 0.0))
        for name in names
    }


def archived_values(records: int) -> dict[str, float]:
    """Return an archiver's report: the number of records it has stored since its start."""
    return {_ARCHIVED: float(records)}


def read_archived(event: Metrics) -> float:
    """Return the number of archived records from an archiver's report."""
    return event.values.get(_ARCHIVED, 0.0)


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

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self.report()
            await asyncio.sleep(self._every_s)

    async def report(self) -> None:
        """Publish the present values if they have changed; a failure of the log does not end the service."""
        values = dict(self._measure())
        now = time.monotonic()
        if not values or (values == self._told and now - self._told_at < self._repeat_s):
            return
        now_ms = time.time_ns() // 1_000_000
        event = Metrics(
            event_id=event_id(self._run_id, "metrics", self._source, now_ms),
            run_id=self._run_id,
            occurred_at_ms=now_ms,
            source=self._source,
            values=values,
        )
        try:
            await self._event_log.append([record_from_event(event)])
        except EventLogError as error:
            if str(error) != self._reason:
                _log.warning("not reported", source=self._source, reason=str(error))
            self._reason = str(error)
            return
        self._told, self._told_at, self._reason = values, now, ""


@asynccontextmanager
async def reporting(reporter: Reporter, stop: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Report while the caller works; yield an event that is set after ``stop``, when reporting has ended."""
    silent = asyncio.Event()
    work = asyncio.ensure_future(reporter.run())

    async def fall_silent() -> None:
        await stop.wait()
        work.cancel()
        await asyncio.wait([work])
        silent.set()

    waiting = asyncio.ensure_future(fall_silent())
    try:
        yield silent
    finally:
        waiting.cancel()
        work.cancel()
        await asyncio.wait([waiting, work])
