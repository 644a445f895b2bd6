"""The metrics that a collector publishes beside the games: engines, adapters, GPUs and the model pool."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Final, TypeAlias

from unstable_stream.errors import ServiceError
from unstable_stream.events import AdapterProof, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.services.streams.reports import metrics_record
from unstable_stream.services.workers.engine import EngineHandle

_EVERY_S: Final = 5.0
_FIELDS: Final = ("index", "utilization.gpu", "memory.used", "memory.total")
_PATIENCE_S: Final = 10.0
"""nvidia-smi takes a second; a driver that hangs must not hold up what else is reported."""
_ENDS_S: Final = 1.0
_MIB: Final = 2**20

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
    ) -> None:
        """``engines`` and ``pool`` give what there is now; the pool is empty while nothing is known of it."""
        self._run_id = run_id
        self._engines = engines
        self._pool = pool
        self._gpus = gpus
        self._reported_pool: Mapping[str, float] = {}
        self._waited: set[int] = set()
        """Engines that have waited for a store."""

    async def record_adapters(self, log: EventLog) -> None:
        """Publish what came of the adapters that engines have loaded."""
        records = []
        for number, engine in self._engines().items():
            name = f"engine-{number}"
            for found in await engine.adapter_results():
                facts = asdict(found)
                at_ms = facts.pop("at_ms")
                proof_id = event_id(self._run_id, "adapter-proof", name, found.model_uid, at_ms)
                proof = AdapterProof(
                    event_id=proof_id, run_id=self._run_id, occurred_at_ms=at_ms, engine=name, **facts
                )
                records.append(record_from_event(proof))
        if records:
            await log.append(records)

    async def keep_reporting(self, log: EventLog) -> None:
        """Publish each engine's load and speed, and the pool when it has changed, until cancelled.

        The first time is at once: that says that the engines are ready.
        """
        while True:
            await self.record_adapters(log)
            records = []
            for number, engine in self._engines().items():
                try:
                    stats = await engine.stats()
                except ServiceError:
                    continue  # it is lost, which others report
                prefix = f"inference/engine-{number}"
                values = {
                    f"{prefix}/queued": float(stats.queued),
                    f"{prefix}/running": float(stats.running),
                    f"{prefix}/tok_s": stats.tokens_per_s,
                    f"{prefix}/completions": float(stats.completions),
                }
                if stats.idle_s is not None:
                    values[f"{prefix}/idle_s"] = stats.idle_s
                if stats.store_wait_s or number in self._waited:
                    values[f"stores/engine-{number}/wait_s"] = stats.store_wait_s
                    self._waited.add(number)
                records.append(metrics_record(self._run_id, f"engine-{number}", values))
            if self._gpus is not None and (values := dict(await self._gpus())):
                records.append(metrics_record(self._run_id, "gpus", values))
            await log.append(records)
            await self.report_pool(log)
            await asyncio.sleep(_EVERY_S)

    async def report_pool(self, log: EventLog) -> None:
        """Publish the pool if it has changed since the last time."""
        pool = self._pool()
        if pool and pool != self._reported_pool:
            self._reported_pool = pool
            await log.append([metrics_record(self._run_id, "model-pool", pool)])


async def read_gpus() -> dict[str, float]:
    """Return the metrics ``gpu/N/utilization``, ``gpu/N/memory-used`` and ``gpu/N/memory-total``.

    Nothing where there is no nvidia-smi, or where it does not answer.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return {}
    try:
        process = await asyncio.create_subprocess_exec(
            command,
            f"--query-gpu={','.join(_FIELDS)}",
            "--format=csv,noheader,nounits",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        async with asyncio.timeout(_PATIENCE_S):
            printed, _ = await process.communicate()
    except TimeoutError:
        return {}
    finally:
        if process.returncode is None:
            process.kill()
            with suppress(TimeoutError):  # a driver that hangs keeps it
                async with asyncio.timeout(_ENDS_S):
                    await process.wait()
    return parse_gpus(printed.decode(errors="replace"))


def parse_gpus(printed: str) -> dict[str, float]:
    """Read what nvidia-smi prints: percent and MiB; a number that a GPU does not report is left out."""
    values: dict[str, float] = {}
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_FIELDS) or not cells[0].isdecimal():
            continue
        scales = {"utilization": 0.01, "memory-used": _MIB, "memory-total": _MIB}
        for (name, scale), cell in zip(scales.items(), cells[1:], strict=True):
            if cell.replace(".", "", 1).isdecimal():
                values[f"gpu/{cells[0]}/{name}"] = float(cell) * scale
    return values
