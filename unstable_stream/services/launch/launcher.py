"""The launcher records the run, starts its services, and ends it in order.

1. check the whole configuration before anything is started or written;
2. record the run (or its resumption) in the log;
3. start the services that do not run elsewhere; start Ray, if it is used, before those that need it;
4. wait until the learner has made its updates and the collector has evaluated the last checkpoint;
5. stop the learner, the collector and the processors, record the end, and then stop the archiver, each when
   it has drained its topics.

A signal or the caller may ask for the end at any time (:mod:`unstable_stream.services.launch.stopping`). From
the moment in which a run is recorded, its end is recorded too; before, a signal ends this process with
nothing written.

The services are processes on Ray's machine or cluster (:mod:`unstable_stream.services.launch.supervisor`), or
tasks of this process (:mod:`unstable_stream.services.launch.inline`).
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from unstable_stream.console import get_logger
from unstable_stream.errors import ConfigError, FencedError, ServiceError, UnstableStreamError
from unstable_stream.events import CollapseWarning, RunStarted, Step
from unstable_stream.inference.base_model import is_snapshot, model_directory, model_here, resolve_model
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import readable_events
from unstable_stream.log.topic_drift import prepare_topics
from unstable_stream.runs.base_model import base_model_path, with_fingerprint
from unstable_stream.runs.code import remember_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.fork import Fork
from unstable_stream.runs.history import read_history
from unstable_stream.runs.placement import Machine, Placement
from unstable_stream.runs.recording import finish_run, new_run_id, start_run
from unstable_stream.runs.resume import check_plays, resume_run
from unstable_stream.runs.sweeps import ON_COLLAPSE
from unstable_stream.runs.verdicts import changed_environments, environments_in_use
from unstable_stream.services.launch.plan import RunPlan, plan_run, this_machine
from unstable_stream.services.launch.preflight import check_base_model, check_config
from unstable_stream.services.launch.stopping import Stop, end_by, in_thread, say, stopped_by_signals
from unstable_stream.services.streams.costs import CostMeter, reported
from unstable_stream.services.streams.reports import Reporter
from unstable_stream.services.tracking.service_reports import LAUNCHER, Service, service_values

if TYPE_CHECKING:
    from unstable_stream.services.launch.inline import InlineServices
    from unstable_stream.services.launch.ray.keeper import RayServices

_logger = get_logger(__name__)

Backend: TypeAlias = Literal["ray", "inline"]

Watch: TypeAlias = Callable[[EventLog, str, RunConfig, Mapping[str, Service]], Awaitable[None]]

_Plan: TypeAlias = Callable[[list[Machine]], RunPlan]

_LAST_RECORD_S = 10.0
"""Seconds in which the end is recorded and archived when a run ends at once."""


@dataclass(frozen=True)
class Launch:
    """The result of :func:`launch`."""

    run_id: str
    outcome: str
    """``completed`` or ``stopped``."""
    signal: int | None = None
    """The signal that stopped it; ``None``: no signal did."""


async def launch(
    config: RunConfig,
    data: DataDir,
    *,
    resume: str | None = None,
    fork: Fork | None = None,
    run_id: str | None = None,
    watch: Watch | None = None,
    backend: Backend | None = None,
    stop: Stop | None = None,
    progress: Callable[[str], None] = lambda stage: None,
    on_start: Callable[[str], None] = lambda run_id: None,
) -> Launch:
    """Run a configuration until its end or until ``stop``.

    In the main thread SIGINT, SIGTERM and SIGHUP stop it in order, and a second of them at once, which ends
    this process. Before the run is recorded they end the process as always. In other threads signals are not
    touched.

    Args:
        config: the run's whole configuration, already checked against a run to resume.
        data: the data directory of the run's files.
        resume: id of a run to resume.
        fork: the point in another run's history to begin from.
        run_id: id of a new run; ``None``: a new id is made.
        watch: the live view; it runs beside the run and is cancelled at the end.
        backend: replaces ``config.backend`` and is recorded with the run.
        stop: ends the run in order when it is asked, and at once when it is asked again; the run can be
            resumed. It belongs to the caller's event loop.
        progress: called with a few words about the present stage, until the first game is played.
        on_start: called with the run's id when the run is recorded.

    Raises:
        ConfigError: the configuration cannot run, or not on the machines of the cluster: it cannot be placed,
            or a machine lacks the model, an extension, a package, or the GPUs that Ray counts there; nothing
            was written.
        RunError: the run to resume plays no games.
        ServiceError: no Ray cluster answers, or a machine of it does not describe itself, and nothing was
            written; or a service died too often, and the run can be resumed.
        UnstableStreamError: with ``inline``, the error of a service, with a note on how to resume.
    """
    if backend is not None:
        config = config.model_copy(update={"backend": backend})
    if not config.directory:
        config = config.model_copy(update={"directory": os.getcwd()})
    stop = stop or Stop()
    progress = _harmless(progress)
    config, model_path, plan, here = await _check(config, data, stop, progress)
    run_id = resume or run_id or new_run_id(config.name)
    run = RunContext(run_id, config, data)
    async with run.opened_log() as log:
        await prepare_topics(log, config.log, data.options(config.log))
        steps: Sequence[Step] = ()
        if config.imitates and resume is None:
            run, steps = await _imitating(log, run, model_path, fork.update if fork else 0, progress)
        remember_code(config, data.own_code(run_id))  # first: without it the owner could not resume
        services = _services(log, run, model_path, plan, here)
        viewer: asyncio.Future[None] | None = None
        remedy = f"unstable-stream train --resume {run_id}{data.options(config.log)}"
        with stopped_by_signals(stop):
            started, resumption = await _record(log, run, resume=resume is not None, fork=fork, steps=steps)
            trains = config.learner.iterations > (started.parent_update or 0)
            supervised = SupervisedRun(log, run, services, stop, resumption, trains, remedy)

            def begun() -> None:
                nonlocal viewer
                on_start(run_id)
                if watch is not None:
                    viewer = asyncio.ensure_future(watch(log, run_id, config, services.services))

            try:
                launched = await supervised.supervise(progress, begun)
            except FencedError as error:
                raise ServiceError(
                    f"run {run_id} was taken over by another launcher, where it goes on; this one has "
                    f"ended: {error}"
                ) from error
            except UnstableStreamError as error:
                if config.backend == "inline":
                    error.add_note(f"resume it with: {remedy}")
                    raise
                raise ServiceError(f"run {run_id} stopped: {error}\nresume it with: {remedy}") from error
            finally:
                await services.close()
                if viewer is not None:
                    await _end(viewer)
    if stop.at_once.is_set() and stop.signal and threading.current_thread() is threading.main_thread():
        end_by(stop.signal)  # threads that still compute would hold this process up
    return launched


async def _check(
    config: RunConfig, data: DataDir, stop: Stop, progress: Callable[[str], None]
) -> tuple[RunConfig, str, _Plan, Placement | None]:
    """Return the configuration with its models, where the base model is, what places the run, and its
    placement on this machine; of a cluster only Ray knows the machines, and they are checked.
    """
    progress("checking the configuration")
    data.refuse_export()
    _check_backend(config)
    await in_thread(stop, check_config, config)
    if config.backend == "ray":
        # Before anything is written: Ray may not be installed, or its cluster gone.
        from unstable_stream.services.launch.ray.cluster import check_reachable

        await in_thread(stop, check_reachable)
    at_hand = model_here(config.model, config.model_revisions.get(config.model))
    config, model_path = await in_thread(stop, _with_models, config)
    if not at_hand:  # it was fetched only now
        await in_thread(stop, check_base_model, config, model_path)
    plan = partial(plan_run, config, model_path)
    if config.backend == "inline" or "RAY_ADDRESS" not in os.environ:
        planned = plan([await in_thread(stop, this_machine)])
        for line in planned.lines:
            progress(line)
        return config, model_path, plan, planned.placement
    from unstable_stream.services.launch.ray.nodes import check_cluster

    progress("asking the cluster's machines what they have")
    loop = asyncio.get_running_loop()

    def tell(words: str) -> None:
        loop.call_soon_threadsafe(progress, words)

    await in_thread(stop, check_cluster, plan, config, model_path, tell)
    return config, model_path, plan, None


def _harmless(progress: Callable[[str], None]) -> Callable[[str], None]:
    """Let a terminal that was closed not end the run."""

    def report(stage: str) -> None:
        with contextlib.suppress(OSError):
            progress(stage)

    return report


def _with_models(config: RunConfig) -> tuple[RunConfig, str]:
    """Fetch what models of Hugging Face's the run uses; return the configuration with the commit of each and
    the fingerprint of the base model, and the directory of the base model.
    """
    model_path = base_model_path(config)
    paths = {config.model: model_path} | {
        name: resolve_model(name, revision=config.model_revisions.get(name))
        for name in config.opponent_models
        if name != config.model
    }
    commits = {
        name: Path(path).name
        for name, path in paths.items()
        if is_snapshot(path) and model_directory(name) is None
    }
    revisions = {**config.model_revisions, **commits}
    config = config.model_copy(update={"model_revisions": revisions})
    return with_fingerprint(config, model_path), model_path


def _check_backend(config: RunConfig) -> None:
    faust = config.processors.runtime == "faust" and "processors" not in config.external
    if config.backend == "inline" and faust:
        raise ConfigError(
            'backend="inline" cannot host processors on Faust, which wants a process of its own: set '
            'processors.runtime="generic", or backend="ray", or run the processors elsewhere and add them to '
            "external"
        )


async def _record(
    log: EventLog, run: RunContext, *, resume: bool, fork: Fork | None, steps: Sequence[Step]
) -> tuple[RunStarted, int]:
    """Return the start of the run, and the number of the resumption; 0 if the run is new.

    Recorded with it, and told of where somebody should look: the environments and their verdicts.
    """
    run_id, config, data = run
    found, doubts = await asyncio.to_thread(environments_in_use, config, data)
    for line in doubts:
        _logger.warning(line)
    if not resume:
        return await start_run(log, config, run_id, fork, environments=found, events=steps), 0
    recorded = (await read_history(log)).run(run_id)
    started = recorded.began
    assert started is not None, "a run is found by its beginning"
    check_plays(started)
    for line in await asyncio.to_thread(changed_environments, recorded.environments):
        _logger.warning(line)
    return started, (await resume_run(log, run_id, config, found)).resumption


async def _imitating(
    log: EventLog, run: RunContext, model_path: str, first_update: int, progress: Callable[[str], None]
) -> tuple[RunContext, Sequence[Step]]:
    """Return a run that imitates with what it has chosen, and its steps."""
    from unstable_stream.services.workers.imitation import imitated_steps  # loads the games

    progress("choosing turns to imitate")
    config, steps = await imitated_steps(log, run, model_path, first_update)
    chosen = config.imitation
    progress(
        f"{chosen.turns:,} turns chosen; the tokens of {chosen.made_anew:,} are made anew by this run's "
        "tokenizer and template"
    )
    return run._replace(config=config), steps


def _services(
    log: EventLog, run: RunContext, model_path: str, plan: _Plan, here: Placement | None
) -> "InlineServices | RayServices":
    if run.config.backend == "inline":
        assert here is not None
        from unstable_stream.services.launch.inline import InlineServices  # loads the games

        return InlineServices(log, run, model_path, here)
    from unstable_stream.services.launch.ray.keeper import RayServices

    return RayServices(run, plan)


@dataclass
class SupervisedRun:
    """A recorded run whose services are started here, until its end is recorded."""

    log: EventLog
    run: RunContext
    services: "InlineServices | RayServices"
    stop: Stop
    resumption: int
    """Number of the resumption; 0 if the run is new."""
    trains: bool
    """Whether it makes updates of its own."""
    remedy: str
    """The command that resumes it."""
    outcome: str = "failed"
    reason: str = "the launcher was interrupted"
    recorded: bool = False
    """Whether its end is."""
    costs: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    """Reports of what this process uses; closed before the end is recorded."""

    async def supervise(self, progress: Callable[[str], None], begun: Callable[[], None]) -> Launch:
        """Run the services until their end, and record the end, whatever happens."""
        run_id, config, _ = self.run
        inline = config.backend == "inline"
        gpus = sum(share.num_gpus for share in self.services.shares)
        meter = CostMeter(run_id, "inline" if inline else LAUNCHER, gpus=gpus, whole=False)
        await self.costs.enter_async_context(reported(self.log, meter))
        reporter = Reporter(self.log, run_id, LAUNCHER, lambda: service_values(self.services.services))
        reporting = asyncio.ensure_future(reporter.run())
        work = asyncio.ensure_future(self._work(progress))
        stopping = asyncio.ensure_future(self.stop.asked.wait())
        beside: list[asyncio.Future[Any]] = [work, stopping]
        if config.learner.on_collapse == "stop":
            beside.append(asyncio.ensure_future(_collapse(self.log, run_id)))
        try:
            begun()
            await asyncio.wait(beside, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                done = f"{config.learner.iterations} updates" if self.trains else "evaluated"
                self.outcome, self.reason = "completed", done
            elif stopping.done():
                self.outcome, self.reason = "stopped", self.stop.reason
                if self.stop.signal is not None:
                    say(self._stopping_words())
            else:
                self.outcome, self.reason = "stopped", f"{ON_COLLAPSE}: {beside[-1].result().text}"
        except Exception as error:
            named = "" if isinstance(error, UnstableStreamError) else f"{type(error).__name__}: "
            self.reason = f"{named}{error}"
            raise
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await self._end_services(reporter, reporting)
        if self.services.failure is not None:
            raise self.services.failure
        return Launch(run_id, self.outcome, self.stop.signal if self.outcome == "stopped" else None)

    async def _work(self, progress: Callable[[str], None]) -> None:
        """Start all services that are not external; return when learner and collector have finished.

        A run that does not train has no learner.
        """
        config, services = self.run.config, self.services
        for name in ("processors", "archiver"):
            if name not in config.external:
                services.start(name)
        if config.metrics_port is not None:
            services.start("monitor", essential=False)
        if config.consumers or config.trackers:
            services.start("consumers", essential=False)
        await services.prepare(progress)
        progress(f"loading the model{' (vLLM: a minute or more)' if config.engine.type == 'vllm' else ''}")
        workers = ("learner", "collector") if self.trains else ("collector",)
        for name in workers:
            services.start(name)
        await services.wait(workers)

    def _stopping_words(self) -> str:
        up = [name for name, service in self.services.services.items() if service.pid is not None]
        waits = [f"{name} (to finish its update)" if name == "learner" else name for name in up]
        return (
            f"{self.reason}: stopping run {self.run.run_id}; waiting for {', '.join(waits) or 'nothing'}. "
            f"A second signal ends it at once. Then go on with: {self.remedy}"
        )

    async def _end_services(self, reporter: Reporter, reporting: "asyncio.Future[None]") -> None:
        """Stop the services in order and record the end; at once if the caller cancels or asks for it."""
        ending = asyncio.ensure_future(self._end_in_order(reporter, reporting))
        hurry = asyncio.ensure_future(self.stop.at_once.wait())
        try:
            await asyncio.wait((ending, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            if not ending.done():
                ending.cancel()
                await asyncio.wait([ending])
            if not self.recorded:
                await self.services.kill(but="archiver")
                await _end(reporting)
                try:
                    async with asyncio.timeout(_LAST_RECORD_S):
                        await self.costs.aclose()
                        await self._record_end()
                        await self.services.stop("archiver")
                except TimeoutError:
                    if not self.recorded:
                        run_id = self.run.run_id
                        say(f"the end of run {run_id} could not be recorded within {_LAST_RECORD_S:g} s")
        if not ending.cancelled():
            ending.result()

    async def _end_in_order(self, reporter: Reporter, reporting: "asyncio.Future[None]") -> None:
        services = self.services
        await asyncio.gather(services.stop("collector"), services.stop("learner"))
        await services.stop("processors")
        await services.stop("consumers")
        await _end(reporting)
        await reporter.report()  # that they are down; the archiver stores it yet
        await self.costs.aclose()
        if services.failure is not None and self.outcome == "completed":
            self.outcome, self.reason = "failed", str(services.failure)  # while it was stopped
        await self._record_end()
        await asyncio.gather(services.stop("archiver"), services.stop("monitor"))

    async def _record_end(self) -> None:
        await finish_run(self.log, self.run.run_id, self.outcome, self.reason, resumption=self.resumption)
        self.recorded = True


async def _collapse(log: EventLog, run_id: str) -> CollapseWarning:
    """Return the first warning from now on that the run is to stop for."""
    consumer = await log.consumer([CollapseWarning.TOPIC])
    try:
        await consumer.seek(await log.end_offsets(CollapseWarning.TOPIC))
        while True:
            for event in readable_events(await consumer.poll(timeout_s=1.0)):
                if isinstance(event, CollapseWarning) and event.run_id == run_id and event.action == "stop":
                    return event
    finally:
        await consumer.close()


async def _end(task: "asyncio.Future[None]") -> None:
    """Cancel a task beside the run. Its error is logged: it must not take the place of the run's result."""
    task.cancel()
    await asyncio.wait([task])
    error = None if task.cancelled() else task.exception()
    with contextlib.suppress(OSError):  # the terminal was closed, maybe the view failed of it
        if error is not None:
            _logger.warning("a view of the run failed", error=f"{type(error).__name__}: {error}")
