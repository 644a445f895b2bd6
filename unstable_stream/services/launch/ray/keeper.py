"""The process that starts Ray for a run, or holds its GPUs on a cluster.

The launcher must outlive Ray, to record the end of the run and to say how it is resumed. But Ray ends a
process that is connected to it, without a word, when its head is lost; it replaces signal handlers; and a
signal to the launcher's process group (``timeout``, a closed terminal) would reach Ray's processes too. So
this process, in a session of its own, is connected in the launcher's place::

    python -m unstable_stream.services.launch.ray.keeper

1. It starts Ray, or connects to ``RAY_ADDRESS``, and writes Ray's variables and machines as a line of JSON.
2. It reads the placement as a line of JSON, reserves it, and writes the variables by which services find it.
3. It ends Ray when its standard input closes, so also after a launcher that was killed.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from unstable_stream.errors import ServiceError, UnstableStreamError
from unstable_stream.runs.placement import Machine, Placement
from unstable_stream.services.launch.plan import RunPlan
from unstable_stream.services.launch.stopping import SIGNALS
from unstable_stream.services.launch.supervisor import RecordedProgress, Supervisor


class RayServices(Supervisor):
    """A supervisor that starts Ray before the services that need it, and ends it with them."""

    def __init__(
        self,
        arguments: Sequence[str],
        log_dir: Path,
        *,
        plan: Callable[[list[Machine]], RunPlan],
        max_restarts: int,
        progress: RecordedProgress,
        environment: Mapping[str, str],
    ) -> None:
        """Take what a supervisor takes, what machines are asked for, and ``plan``, which places learner and
        engines on Ray's machines.
        """
        super().__init__(
            arguments, log_dir, max_restarts=max_restarts, progress=progress, environment=environment
        )
        self._plan = plan
        self._keeper: RayKeeper | None = None

    async def prepare(self, progress: Callable[[str], None]) -> None:
        """Start Ray, or connect to the cluster that ``RAY_ADDRESS`` names, and reserve what the run wants.

        Raises:
            ServiceError: Ray did not start, or its GPUs are taken.
            ConfigError: learner and engines cannot be placed on its machines.
        """
        progress("starting Ray")
        joining = "RAY_ADDRESS" in os.environ
        self._keeper = await RayKeeper.start(self.environment, self._log_dir / "ray.log")
        variables, machines = await self._keeper.look()
        self.environment |= variables
        planned = await asyncio.to_thread(self._plan, machines)
        self.environment |= await self._keeper.reserve(planned.placement)
        if joining:  # else the launcher has said it
            for line in planned.lines:
                progress(line)

    async def close(self) -> None:
        """End what still runs; end Ray, if it was started here, and give up what is reserved on a cluster."""
        await self.kill()
        if self._keeper is not None:
            await self._keeper.close()


_MARK: Final = "keeper: "
_END_S: Final = 20.0
_NO_HANDLER: Final = "RAY_DISABLE_FAILURE_SIGNAL_HANDLER"
"""Ray reads this variable when it is imported."""
_LONGEST_LINE_BYTES: Final = 2**24
"""The machines of a large cluster are one line."""


class RayKeeper:
    """The launcher's handle of that process."""

    def __init__(self, process: asyncio.subprocess.Process, log_path: Path) -> None:
        """Use :meth:`start` instead."""
        self._process = process
        self._log_path = log_path
        self._answered = False

    @classmethod
    async def start(cls, environment: Mapping[str, str], log_path: Path) -> "RayKeeper":
        """Start the process, which starts Ray; its standard error goes to ``log_path``."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "unstable_stream.services.launch.ray.keeper",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
                limit=_LONGEST_LINE_BYTES,
            )
        return cls(process, log_path)

    async def look(self) -> tuple[dict[str, str], list[Machine]]:
        """Return, once Ray has started, the variables with which services reach it, and its machines; call it
        once.

        Raises:
            ServiceError: Ray did not start, or a machine does not describe itself.
        """
        answer = await self._answer()
        return answer["variables"], msgspec.convert(answer["machines"], list[Machine])

    async def reserve(self, placement: Placement) -> dict[str, str]:
        """Reserve what a plan wants; return the environment variables by which services find it.

        Raises:
            ServiceError: the GPUs were not free in time.
        """
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # it has ended; the answer says so
            self._process.stdin.write(msgspec.json.encode(placement) + b"\n")
            await self._process.stdin.drain()
        variables: dict[str, str] = (await self._answer())["variables"]
        return variables

    async def close(self) -> None:
        """End Ray with all of its processes, and give up what is reserved."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            # While Ray starts it reads nothing, and Ray is of no use any more.
            await asyncio.wait_for(self._process.wait(), _END_S if self._answered else 0)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith(_MARK.encode()):
                answer: dict[str, Any] = json.loads(line.removeprefix(_MARK.encode()))
                if "error" in answer:
                    raise ServiceError(str(answer["error"]))
                self._answered = True
                return answer
        status = await self._process.wait()
        raise ServiceError(f"Ray could not be started: it ended with status {status}, see {self._log_path}")


def main() -> int:
    """Start Ray and hold what is reserved until standard input closes."""
    # Signals may be sent to all processes of a job; this one ends when the launcher ends it. Ray's own
    # handler aborts at SIGTERM, but in its workers, which inherit the environment, it explains crashes.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.environ[_NO_HANDLER] = "1"
    from unstable_stream.services.launch.ray.cluster import start_local, stop_local
    from unstable_stream.services.launch.ray.placement import cluster_machines, reserve

    del os.environ[_NO_HANDLER]
    try:
        before = dict(os.environ)
        address = start_local()
        # Ray sets some for its own processes, such as the mode in which they prove that they are ours.
        changed = {name: value for name, value in os.environ.items() if value != before.get(name)}
        variables = {name: value for name, value in changed.items() if name.startswith("RAY_")}
        variables["RAY_ADDRESS"] = address
        _write({"variables": variables, "machines": msgspec.to_builtins(cluster_machines())})
        if line := sys.stdin.buffer.readline():
            _write({"variables": reserve(msgspec.json.decode(line, type=Placement))})
            sys.stdin.buffer.read()
    except UnstableStreamError as error:
        _write({"error": str(error)})
        return 1
    finally:
        stop_local()
    return 0


def _write(answer: Mapping[str, object]) -> None:
    with suppress(BrokenPipeError):  # the launcher was killed
        print(f"\n{_MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
