"""Start a run's processes, restart them when they die, and stop them in order.

A child ends with its parent: it watches its standard input, which closes when the parent ends for any reason.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from unstable_stream.errors import ServiceError

__all__ = ["ServiceProcess", "Supervisor"]

_FULL_DISK_BYTES = 1024 * 1024
_LONGEST_DELAY_S = 10.0


@dataclass
class ServiceProcess:
    """One supervised process."""

    name: str
    log_path: Path
    process: asyncio.subprocess.Process | None = None
    restarts: int = 0
    finished: bool = False
    """True if it ended by itself with status 0."""
    essential: bool = True
    """True if the run ends when this service dies too often."""
    stopping: bool = False
    watcher: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None


class Supervisor:
    """Keeps services alive: it restarts each up to ``max_restarts`` times, with growing pauses.

    Args:
        arguments: the arguments of every service, after its name.
        log_dir: the directory of the services' output, and of ``launcher.log``, which lists their starts and
            ends.
        max_restarts: the most restarts of one service; after them the run cannot go on.
        environment: see :attr:`environment`.
        program: the command, which receives the service's name.
        first_delay_s: seconds before the first restart; each further pause is twice as long, up to ten
            seconds.
        stop_deadline_s: seconds in which a service may drain and commit after SIGTERM before it is killed.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log_dir: Path,
        *,
        max_restarts: int,
        environment: Mapping[str, str],
        program: Sequence[str] = (sys.executable, "-m", "unstable_stream.launch.service"),
        first_delay_s: float = 0.5,
        stop_deadline_s: float = 60.0,
    ) -> None:
        self._arguments = list(arguments)
        self._program = list(program)
        self._first_delay_s = first_delay_s
        self._stop_deadline_s = stop_deadline_s
        self._log_dir = log_dir
        self._max_restarts = max_restarts
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
                await asyncio.wait_for(process.wait(), self._stop_deadline_s)
            except TimeoutError:
                self._note(
                    f"{name} (pid {process.pid}) did not stop within {self._stop_deadline_s:g} s: killing it"
                )
                process.kill()
                await process.wait()
        if service.watcher is not None:
            service.watcher.cancel()
            await asyncio.gather(service.watcher, return_exceptions=True)

    async def _watch(self, service: ServiceProcess) -> None:
        while not service.stopping:
            with service.log_path.open("ab") as output:
                status = await self._run_once(service, output)
            if service.stopping:
                return
            if status == 0:
                service.finished = True
                self._changed.set()
                return
            if service.restarts >= self._max_restarts and not service.essential:
                self._note(f"{service.name} ended with status {status} again: going on without it")
                return
            if service.restarts >= self._max_restarts:
                self.failure = ServiceError(
                    f"{service.name} ended with status {status} after {service.restarts} restarts: "
                    f"{_last_line(service.log_path)} (all of it: {service.log_path})"
                )
                self._changed.set()
                return
            delay = min(_LONGEST_DELAY_S, self._first_delay_s * 2**service.restarts)
            service.restarts += 1
            self._note(f"{service.name} ended with status {status}: starting it again in {delay:g} s")
            await asyncio.sleep(delay)

    def _note(self, message: str) -> None:
        # Beside the services' output and not on the terminal, which shows the live view.
        now = datetime.now(tz=UTC).isoformat(timespec="milliseconds")
        with (self._log_dir / "launcher.log").open("a", encoding="utf-8") as notes:
            notes.write(f"{now} {message}\n")

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


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return _error_of(lines[-1]) if lines else _silence(path)


def _error_of(line: str) -> str:
    """Return the message of a log line; it is one JSON object if the logs are for machines."""
    try:
        fields = json.loads(line)
    except ValueError:
        return line
    return str(fields.get("error") or fields.get("event") or line) if isinstance(fields, dict) else line


def _silence(path: Path) -> str:
    # On a full disk a service cannot even write the reason of its death.
    full = shutil.disk_usage(path.parent).free < _FULL_DISK_BYTES
    return "the disk is full" if full else "it printed nothing"
