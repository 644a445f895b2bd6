"""The services of a run as tasks of this process and this event loop: no Ray, no child process.

They are the same components as in separate processes, with one connection to the log. Threads load and train
models, write the archive and run the engine. Games, folds and the log's shell share the event loop.

No service is restarted: the first failure ends the run with its error. The run can be resumed, here or on
Ray.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from unstable_stream.console import get_logger
from unstable_stream.inference.engine import Engine
from unstable_stream.log.cpu_time import spending
from unstable_stream.log.port import EventLog
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.history import run_started
from unstable_stream.runs.placement import Placement, Share
from unstable_stream.services.launch.service import serve_stream
from unstable_stream.services.workers.collector import Collector
from unstable_stream.services.workers.collector_reports import read_gpus
from unstable_stream.services.workers.engine import LocalEngine, build_engine, build_opponent
from unstable_stream.services.workers.loading import loading, unload
from unstable_stream.services.workers.rollout import RolloutWorker, end_with

if TYPE_CHECKING:
    from unstable_stream.services.workers.learner import Learners

T = TypeVar("T")

_CANCELLED_S: Final = 1.0
"""Seconds in which a service ends that waits for no thread."""

_logger = get_logger(__name__)


@dataclass
class InlineService:
    """One service, a task of this process."""

    name: str
    essential: bool = True
    """True if the run ends with this service."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)
    restarts: int = 0
    """Always 0."""
    trouble: str = ""
    """Always empty: a failure ends the run with its error."""

    @property
    def pid(self) -> int | None:
        """Process id of this process while the service runs."""
        return os.getpid() if self.task is not None and not self.task.done() else None


class InlineServices:
    """Starts and stops services in the same way as
    :class:`~unstable_stream.services.launch.supervisor.Supervisor`.
    """

    def __init__(self, log: EventLog, run: RunContext, model_path: str, placement: Placement) -> None:
        """Take a ``log`` that all services share and the caller closes."""
        self._placement = placement
        self._event_log = log
        self._run = run
        self._model_path = model_path
        # One thread: two threads must not load libraries that import each other at the same time.
        self._loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="load-model")
        self.services: dict[str, InlineService] = {}
        self.failure: BaseException | None = None
        """The first error of an essential service."""
        self._changed = asyncio.Event()
        self._killed = False

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares that this process computes on."""
        return self._placement.shares

    async def prepare(self, progress: Callable[[str], None]) -> None:
        """Do nothing: no preparation is needed."""

    def start(self, name: str, *, essential: bool = True) -> None:
        """Start a service; a service that is not essential may fail without ending the run."""
        service = InlineService(name, essential)
        self.services[name] = service
        service.task = asyncio.create_task(self._serve(name, service.stop), name=f"{self._run.run_id}/{name}")
        service.task.add_done_callback(partial(self._ended, service))

    async def wait(self, names: Sequence[str]) -> None:
        """Return when all of ``names`` have finished; raise the first failure of any service."""
        while True:
            self._changed.clear()
            if self.failure is not None:
                raise self.failure
            if all(self.services[name].pid is None for name in names):
                return
            await self._changed.wait()

    async def stop(self, name: str) -> None:
        """Ask a service to drain and end, and wait for it; an error is stored in :attr:`failure`."""
        service = self.services.get(name)
        if service is None or service.task is None:
            return
        service.stop.set()
        await asyncio.wait([service.task])

    async def kill(self, *, but: str = "") -> None:
        """Cancel the services that still run, but for one. Threads end what they compute, for nobody."""
        self._killed = True
        tasks = self._cancelled(but)
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCELLED_S)

    async def close(self) -> None:
        """Cancel the services that still run and, unless they were killed, wait for their threads."""
        tasks = self._cancelled()
        try:
            if not self._killed:
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._loader.shutdown(wait=False)
            unload()

    def _cancelled(self, but: str = "") -> "list[asyncio.Task[None]]":
        tasks = [each.task for each in self.services.values() if each.task is not None and each.name != but]
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, service: InlineService, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and service.essential and self.failure is None:
            self.failure = error
        self._changed.set()
        if error is not None:
            _logger.error("service failed", service=service.name, error=f"{type(error).__name__}: {error}")

    async def _serve(self, name: str, stop: asyncio.Event) -> None:
        if name == "learner":
            learner = await self._load(self._load_learner)
            await learner.train(self._event_log, stop)
        elif name == "collector":
            await self._collect(stop)
        else:
            await serve_stream(name, self._event_log, self._run, stop)

    def _load_learner(self) -> "Learners":
        from unstable_stream.services.workers.learner import Learners  # loads torch

        return Learners(
            self._run.config, self._run.run_id, self._run.data, self._model_path, self._placement.learner
        )

    async def _collect(self, stop: asyncio.Event) -> None:
        (run_id, config, data), placement = self._run, self._placement
        started = await run_started(self._event_log, run_id)
        async with AsyncExitStack() as opened:
            engine = await self._load(partial(build_engine, config, self._model_path, placement.engines[0]))
            opened.push_async_callback(engine.close)
            others: dict[str, Engine] = {}
            for path, share in zip(config.opponent_models, placement.opponents, strict=True):
                others[path] = await self._load(partial(build_opponent, config, path, share))
                opened.push_async_callback(others[path].close)
            resume = f"unstable-stream train --resume {run_id} --data {data.root}"
            hung = end_with(config, data, f"Go on with: {resume}")
            worker = RolloutWorker(config, self._event_log, self._model_path, engine, others, hung)
            opened.push_async_callback(worker.close)
            engines = [LocalEngine(engine)]
            collector = Collector(config, run_id, engines, [worker], started, data, read_gpus)
            await collector.collect(self._event_log, stop)

    async def _load(self, load: Callable[[], T]) -> T:
        def counted() -> T:
            with spending("loading"):
                return load()

        with loading():
            # In a copy of the context, which holds the permission to load code.
            return await asyncio.get_running_loop().run_in_executor(self._loader, copy_context().run, counted)
