"""Reports of a process about what it uses for a run (:class:`~unstable_stream.events.ProcessCost`).

One report at the beginning, then one a minute, and one at the end: so a process that is killed has lost a
minute at most.
"""

import asyncio
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError
from unstable_stream.events import ProcessCost, event_id, now_ms
from unstable_stream.log.cpu_time import spent
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.runs.context import RunContext

_EVERY_S: Final = 60.0
_LAST_S: Final = 5.0
"""An end does not wait longer for a log that is away."""
_KIB: Final = 1024

_log = get_logger(__name__)


class CostMeter:
    """Measures what this process uses from now on."""

    def __init__(
        self,
        run_id: str,
        process: str,
        *,
        gpus: float = 0.0,
        whole: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin.

        Args:
            run_id: the run.
            process: its name.
            gpus: its share of GPUs, which it holds from now on.
            whole: the process lives for this run alone, and its start counts; else what comes from now on.
            clock: seconds.
        """
        self._run_id = run_id
        self.process = process
        self._gpus = gpus
        self._clock = clock
        self._incarnation = secrets.token_hex(4)
        self._began_s = clock()
        self._cpu_s = 0.0 if whole else time.process_time()
        self._parts = {} if whole else spent()

    def measure(self) -> ProcessCost:
        """Return what it has used so far."""
        at_ms, wall_s = now_ms(), self._clock() - self._began_s
        parts = {part: seconds - self._parts.get(part, 0.0) for part, seconds in spent().items()}
        return ProcessCost(
            event_id=event_id(self._run_id, "process-cost", self.process, self._incarnation, at_ms),
            run_id=self._run_id,
            occurred_at_ms=at_ms,
            process=self.process,
            incarnation=self._incarnation,
            wall_s=wall_s,
            cpu_s=time.process_time() - self._cpu_s,
            parts=parts,
            gpu_s=self._gpus * wall_s,
            peak_memory_bytes=peak_memory_bytes(),
            peak_gpu_memory_bytes=_peak_gpu_memory_bytes(),
        )

    async def report(self, log: EventLog) -> None:
        """Publish what it has used so far; a failure of the log does not end the process."""
        try:
            await log.append([record_from_event(self.measure())])
        except EventLogError as error:
            _log.warning("cost not reported", process=self.process, reason=str(error))


@asynccontextmanager
async def reported(log: EventLog, meter: CostMeter) -> AsyncIterator[None]:
    """Report at the beginning of the block, then once a minute, and at its end."""

    async def keep_reporting() -> None:
        while True:
            await meter.report(log)
            await asyncio.sleep(_EVERY_S)

    reporting = asyncio.ensure_future(keep_reporting())
    try:
        yield
    finally:
        reporting.cancel()
        await asyncio.wait([reporting])
        try:
            async with asyncio.timeout(_LAST_S):
                await meter.report(log)
        except TimeoutError:
            _log.warning("cost not reported", process=meter.process, reason="the log does not answer")


class ActorCosts:
    """Reports of an actor, from its first request until it is closed."""

    def __init__(self, run: RunContext, meter: CostMeter) -> None:
        self._run = run
        self._meter = meter
        self._reporting: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    def begin(self) -> None:
        """Report from now on, if it does not yet."""
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._report())

    async def close(self) -> None:
        """Report for the last time."""
        self._closed.set()
        if self._reporting is not None:
            await self._reporting

    async def _report(self) -> None:
        try:
            async with self._run.opened_log() as log, reported(log, self._meter):
                await self._closed.wait()
        except EventLogError as error:
            _log.warning("cost not reported", process=self._meter.process, reason=str(error))


def peak_memory_bytes() -> int | None:
    """Return the most memory of this process that was resident; ``None``: the system does not tell.

    Not ``getrusage``: its number begins with the memory of the process that started this one.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * _KIB
    return None


def _peak_gpu_memory_bytes() -> int | None:
    # Whoever computes on GPUs with PyTorch has it loaded; to load it for this would cost more than all else.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    devices = range(torch.cuda.device_count())
    return sum(int(torch.cuda.max_memory_allocated(device)) for device in devices)
