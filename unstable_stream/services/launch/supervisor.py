"""Start a run's processes, restart them when they die, and stop them in order.

A child ends with its parent: it watches its standard input, which closes when the parent ends for any reason.
"""

import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from unstable_stream.console import get_logger
from unstable_stream.errors import FencedError, ServiceError, UnstableStreamError
from unstable_stream.services.launch.service_output import Death, Output

FENCED_STATUS: Final = 3
"""Exit status of a service whose place another launcher's service has taken: it is not started again."""

LAUNCHER_LOG: Final = "launcher.log"
"""A line for each death of a service: the moment, the service, its error, and what is done about it."""

_log = get_logger(__name__)

_FULL_DISK_BYTES = 1024 * 1024
_LONGEST_DELAY_S = 10.0
_SETTLED_S: Final = 60.0
_RESTARTS_COUNT_S: Final = 3600.0


def pause_s(first_s: float, ages_s: Sequence[float]) -> float:
    """Return the seconds to wait before a service is started again.

    Args:
        first_s: the shortest pause.
        ages_s: how long ago its earlier restarts were. Each of the last minute doubles the pause, up to ten
            seconds. A service that has run for longer comes back at once: what killed it has passed.
    """
    doubled = sum(age < _SETTLED_S for age in ages_s)
    return min(_LONGEST_DELAY_S, first_s * 2.0 ** min(doubled, 10))


@dataclass
class ServiceProcess:
    """One supervised process."""

    name: str
    log_path: Path
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    """All of them."""
    recent_restarts: list[float] = field(default_factory=list, repr=False)
    """When those were that still count, in seconds of the monotonic clock."""
    output: Output = field(init=False, repr=False)
    """Its output since the last start."""
    trouble: str = ""
    """The latest death and what is done about it, in one line; empty if it never died."""
    finished: bool = False
    """True if it ended by itself with status 0."""
    essential: bool = True
    """True if the run ends when this service dies too often."""
    stopping: bool = False
    watcher: asyncio.Task[None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.output = Output(self.log_path)

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None


class Supervisor:
    """Keeps services alive: it restarts each up to ``max_restarts`` times an hour, with growing pauses.

    One that another launcher's has taken over from, or that would go on without what is missing
    (:attr:`~unstable_stream.errors.UnstableStreamError.final`), is not started again.

    Args:
        arguments: the arguments of every service, after its name.
        log_dir: the directory of the services' output, and of :data:`LAUNCHER_LOG`.
        max_restarts: the most restarts of one service within ``restarts_count_s``; after them the run cannot
            go on.
        environment: see :attr:`environment`.
        program: the command, which receives the service's name.
        first_delay_s: seconds before a restart; see :func:`pause_s`.
        stop_deadline_s: seconds in which a service may drain and commit after SIGTERM before it is killed.
        restarts_count_s: seconds after which a restart is forgotten, so that a run of months is not ended by
            a death now and then.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log_dir: Path,
        *,
        max_restarts: int,
        environment: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m", "unstable_stream.services.launch.service"),
        first_delay_s: float = 0.5,
        stop_deadline_s: float = 60.0,
        restarts_count_s: float = _RESTARTS_COUNT_S,
    ) -> None:
        self._arguments = list(arguments)
        self._program = list(program)
        self._first_delay_s = first_delay_s
        self._stop_deadline_s = stop_deadline_s
        self._log_dir = log_dir
        self._max_restarts = max_restarts
        self._restarts_count_s = restarts_count_s
        self.environment = dict(environment)
        """Variables for new processes, beside this process's environment at that time; Ray adds to them."""
        self.services: dict[str, ServiceProcess] = {}
        self.failure: BaseException | None = None
        self._changed = asyncio.Event()

    def start(self, name: str, *, essential: bool = True) -> None:
        """Start the service and restart it when it dies; in the end give up one that is not essential."""
        self._log_dir.mkdir(parents=True, exist_ok=True)
        service = ServiceProcess(name, self._log_dir / f"{name}.log", essential=essential)
        self.services[name] = service
        service.watcher = asyncio.ensure_future(self._watch(service))
        service.watcher.add_done_callback(partial(self._watched, service))

    async def wait(self, names: Sequence[str]) -> None:
        """Return when all of ``names`` have finished; raise the first failure of any service."""
        while True:
            self._changed.clear()
            if self.failure is not None:
                raise self.failure
            if all(self.services[name].finished for name in names):
                return
            await self._changed.wait()

    async def stop(self, name: str) -> None:
        """Ask a service to drain and end; kill it if it does not within the deadline."""
        service = self.services.get(name)
        if service is None:
            return
        service.stopping = True
        process = service.process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                status = await asyncio.wait_for(process.wait(), self._stop_deadline_s)
                # -SIGTERM: it had not come so far as to handle it.
                if status not in (0, -signal.SIGTERM) and service.essential and self.failure is None:
                    death = _death(service, status)
                    self.failure = self._error(service, death, "while it was stopped")
            except TimeoutError:
                self._note(
                    f"{name} (pid {process.pid}) did not stop within {self._stop_deadline_s:g} s: killing it"
                )
                process.kill()
                await process.wait()
        if service.watcher is not None:
            service.watcher.cancel()
            await asyncio.gather(service.watcher, return_exceptions=True)

    async def kill(self, *, but: str = "") -> None:
        """Kill the services that still run, but for one, and start none of them again."""
        killed = [service for service in self.services.values() if service.name != but]
        for service in killed:
            service.stopping = True
            if service.watcher is not None:
                service.watcher.cancel()
        await asyncio.gather(*(each.watcher for each in killed if each.watcher), return_exceptions=True)
        for service in killed:
            if service.process is not None and service.process.returncode is None:
                service.process.kill()
                await service.process.wait()

    def _watched(self, service: ServiceProcess, watcher: "asyncio.Task[None]") -> None:
        """End the run where a service would not be started again: it would stand still without a word."""
        error = None if watcher.cancelled() else watcher.exception()
        if error is None or self.failure is not None:
            return
        if not isinstance(error, UnstableStreamError):
            failure = ServiceError(f"{service.name} could not be started: {error}")
            failure.__cause__ = error
            error = failure
        self.failure = error
        self._changed.set()

    async def _watch(self, service: ServiceProcess) -> None:
        while not service.stopping:
            service.output = Output(service.log_path)
            with service.log_path.open("ab") as output:
                status = await self._run_once(service, output)
            if service.stopping:
                return
            if status == 0:
                service.finished = True
                self._changed.set()
                return
            death = _death(service, status)
            story = _story(service.name, death)
            now = time.monotonic()
            service.recent_restarts = [
                moment for moment in service.recent_restarts if now - moment < self._restarts_count_s
            ]
            restarts = len(service.recent_restarts)
            if not (service.essential or death.final) and restarts >= self._max_restarts:
                service.trouble = f"{story}; going on without it"
                self._note(service.trouble)
                return
            failure = self._failure(service, status, death)
            if failure is not None:
                self._note(str(failure))
                self.failure = failure
                self._changed.set()
                return
            delay = pause_s(self._first_delay_s, [now - moment for moment in service.recent_restarts])
            service.restarts += 1
            service.recent_restarts.append(now)
            service.trouble = f"{story}; starting it again ({restarts + 1} of {self._max_restarts})"
            self._note(service.trouble)
            await asyncio.sleep(delay)

    def _failure(
        self, service: ServiceProcess, status: int, death: Death
    ) -> FencedError | ServiceError | None:
        """Return the error with which the death of a service ends the run; ``None``: it may start again."""
        if status == FENCED_STATUS:
            return FencedError(death.message)
        if death.final:
            return self._error(service, death, "and is not started again before that is mended")
        restarts = len(service.recent_restarts)
        if restarts < self._max_restarts:
            return None
        return self._error(service, death, f"after {restarts} restarts")

    def _error(self, service: ServiceProcess, death: Death, when: str) -> ServiceError:
        story = _story(service.name, death)
        # An actor's death is explained with its own log.
        where = "" if str(self._log_dir) in story else f" (all of it: {service.log_path})"
        return ServiceError(f"{story}{where}; {service.name} ended {when}")

    def _note(self, message: str) -> None:
        # Beside the services' output and not on the terminal, which shows the live view.
        now = datetime.now(tz=UTC).isoformat(timespec="milliseconds")
        try:
            with (self._log_dir / LAUNCHER_LOG).open("a", encoding="utf-8") as notes:
                notes.write(f"{now} {message}\n")
        except OSError as error:  # on a full disk a service is still to be started again
            _log.warning(message, not_noted=str(error))

    async def _run_once(self, service: ServiceProcess, output: BinaryIO) -> int:
        service.process = await asyncio.create_subprocess_exec(
            *self._program,
            service.name,
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, **self.environment},
            # Ctrl-C reaches only the launcher, which then stops its children in order.
            start_new_session=True,
        )
        return await service.process.wait()


def _death(service: ServiceProcess, status: int) -> Death:
    """Return the death that the process has written, else what its exit status and its last lines say."""
    output = service.output
    death = output.death(None if service.process is None else service.process.pid)
    if status < 0:
        return Death(f"killed by {signal.Signals(-status).name}", output.last_lines())
    if death is not None:
        return death
    # On a full disk a service cannot even write the reason of its death.
    if shutil.disk_usage(output.path.parent).free < _FULL_DISK_BYTES:
        return Death("the disk is full")
    return Death(f"it ended with status {status} and printed", output.last_lines() or "nothing")


def _story(service: str, death: Death) -> str:
    """Return which process died of what. A service says itself which of the processes that it needs died."""
    if death.type == ServiceError.__name__:  # whole, in one line: its end says where all of it is printed
        return " ".join(death.message.split())
    return f"{service} died: {death}"
