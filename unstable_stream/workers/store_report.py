"""Tell all who look at a run that a service of it waits for a store, by topic ``metrics``."""

import asyncio
import time
from typing import Final

from unstable_stream.errors import EventLogError
from unstable_stream.events import Metrics, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log_lines import get_logger
from unstable_stream.stores import store_wait_s

__all__ = ["report_store_wait"]

_EVERY_S: Final = 2.0
_log = get_logger(__name__)


async def report_store_wait(log: EventLog, run_id: str, service: str) -> None:
    """Publish how long this process has waited for a store, until cancelled.

    It does so at first, as long as it waits, and when it does not any more.
    """
    told: float | None = None
    while True:
        waited = store_wait_s()
        if waited or told != 0.0:
            now_ms = time.time_ns() // 1_000_000
            event = Metrics(
                event_id=event_id(run_id, "metrics", f"store-wait-of-{service}", now_ms),
                run_id=run_id,
                occurred_at_ms=now_ms,
                source=service,
                values={f"stores/{service}/wait_s": waited},
            )
            try:
                await log.append([record_from_event(event)])
            except EventLogError as error:
                _log.warning("not reported", service=service, reason=str(error))
            else:
                told = waited
        await asyncio.sleep(_EVERY_S)
