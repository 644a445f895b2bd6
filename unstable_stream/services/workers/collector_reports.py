"""The metrics that a collector publishes beside the games: engines, adapters, GPUs and the model pool."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from unstable_stream.errors import ServiceError
from unstable_stream.events import AdapterProof, Metrics, event_id
from unstable_stream.log.port import EventLog, Record
from unstable_stream.log.records import record_from_event
from unstable_stream.services.workers.engine import EngineHandle

_EVERY_S: Final = 5.0

GpuReader: TypeAlias = Callable[[], Awaitable[Mapping[str, float]]]
"""Says how busy and full this machine's GPUs are."""


class CollectorReports:
    """Publishes from time to time, and what has changed at the end."""

    def __init__(
        self,
        run_id: str,
        engines: Callable[[], Mapping[int, EngineHandle]],
        pool: Callable[[], Mapping[str, float]],
        gpus: GpuReader | None,
        *,
        engines_may_go: bool,
    ) -> None:
        """``engines`` and ``pool`` give what there is now; the pool is empty while nothing is known of it.
        ``engines_may_go``: an engine that is lost is reported by others.
        """
        self._run_id = run_id
        self._engines = engines
        self._pool = pool
        self._gpus = gpus
        self._engines_may_go = engines_may_go
        self._reported_pool: Mapping[str, float] = {}
        self._waited: set[int] = set()
        """Engines that have waited for a store."""

    async def record_adapters(self, log: EventLog) -> None:
        """Publish what came of the adapters that engines have loaded."""
        records = [
            record_from_event(
                AdapterProof(
                    event_id=event_id(
                        self._run_id, "adapter-proof", f"engine-{number}", found.model_uid, found.at_ms
                    ),
                    run_id=self._run_id,
                    occurred_at_ms=found.at_ms,
                    engine=f"engine-{number}",
                    model_uid=found.model_uid,
                    result=found.result,
                    sha256=found.sha256,
                    difference=found.difference,
                    largest_difference=found.largest_difference,
                    tolerance=found.tolerance,
                    base_difference=found.base_difference,
                    duration_ms=found.duration_ms,
                )
            )
            for number, engine in self._engines().items()
            for found in await engine.adapter_results()
        ]
        if records:
            await log.append(records)

    async def keep_reporting(self, log: EventLog) -> None:
        """Publish each engine's load and speed, and the pool when it has changed, until cancelled.

        The first time is at once: that says that the engines are ready.
        """
        while True:
            await self.record_adapters(log)
            now = time.time_ns() // 1_000_000
            records = []
            for number, engine in self._engines().items():
                try:
                    stats = await engine.stats()
                except ServiceError:
                    if not self._engines_may_go:
                        raise
                    continue
                prefix = f"inference/engine-{number}"
                values = {
                    f"{prefix}/queued": float(stats.queued),
                    f"{prefix}/running": float(stats.running),
                    f"{prefix}/tok_s": stats.tokens_per_s,
                    f"{prefix}/completions": float(stats.completions),
                }
                if stats.store_wait_s or number in self._waited:
                    values[f"stores/engine-{number}/wait_s"] = stats.store_wait_s
                    self._waited.add(number)
                records.append(self._metrics(f"engine-{number}", values, now))
            if self._gpus is not None and (values := dict(await self._gpus())):
                records.append(self._metrics("gpus", values, now))
            await log.append(records)
            await self.report_pool(log)
            await asyncio.sleep(_EVERY_S)

    async def report_pool(self, log: EventLog) -> None:
        """Publish the pool if it has changed since the last time."""
        pool = self._pool()
        if pool and pool != self._reported_pool:
            self._reported_pool = pool
            await log.append([self._metrics("model-pool", pool, time.time_ns() // 1_000_000)])

    def _metrics(self, source: str, values: Mapping[str, float], now_ms: int) -> Record:
        return record_from_event(
            Metrics(
                event_id=event_id(self._run_id, "metrics", source, now_ms),
                run_id=self._run_id,
                occurred_at_ms=now_ms,
                source=source,
                values=dict(values),
            )
        )
