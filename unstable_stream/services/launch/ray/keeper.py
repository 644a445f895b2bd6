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
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from unstable_stream.errors import ServiceError, UnstableStreamError
from unstable_stream.extensions import ALLOW_CODE, allowed_patterns
from unstable_stream.runs.code import patterns_of
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.placement import Machine, Placement, Share
from unstable_stream.services.launch.plan import RunPlan
from unstable_stream.services.launch.stopping import SIGNALS
from unstable_stream.services.launch.supervisor import Supervisor

_MARK: Final = "keeper: "
_END_S: Final = 20.0
_NO_HANDLER: Final = "RAY_DISABLE_FAILURE_SIGNAL_HANDLER"
"""Ray reads this variable when it is imported."""
_LONGEST_LINE_BYTES: Final = 2**24
"""The machines of a large cluster are one line."""


class RayServices(Supervisor):
    """A supervisor that starts Ray before the services that need it, and ends it with them."""

    def __init__(self, run: RunContext, plan: Callable[[list[Machine]], RunPlan]) -> None:
        """Take a ``plan`` that places learner and engines on Ray's machines."""
        run_id, config, data = run
        root = str(data.root.absolute())
        # This process's and the run's own.
        allowed = dict.fromkeys((*(allowed_patterns() or ()), *patterns_of(config)))
        super().__init__(
            ["--run", run_id, "--data", root, "--log", config.log, "--die-with-parent"],
            data.service_logs(run_id),
            max_restarts=config.max_restarts,
            environment={
                "PYTHONUNBUFFERED": "1",
                "TOKENIZERS_PARALLELISM": "false",
                ALLOW_CODE: ",".join(allowed),
            },
        )
        self._plan = plan
        self._keeper: asyncio.subprocess.Process | None = None
        self._ray_started = False

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares that this process itself computes on: none."""
        return ()

    async def prepare(self, progress: Callable[[str], None]) -> None:
        """Start Ray, or connect to the cluster that ``RAY_ADDRESS`` names, and reserve what the run wants.

        Raises:
            ServiceError: Ray did not start, a machine does not describe itself, or its GPUs are taken.
            ConfigError: learner and engines cannot be placed on its machines.
        """
        progress("starting Ray")
        joining = "RAY_ADDRESS" in os.environ
        self._log_dir.mkdir(parents=True, exist_ok=True)
        with (self._log_dir / "ray.log").open("ab") as log:
            self._keeper = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "unstable_stream.services.launch.ray.keeper",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
                limit=_LONGEST_LINE_BYTES,
            )
        answer = await self._answer(self._keeper)
        self._ray_started = True
        self.environment |= answer["variables"]
        planned = await asyncio.to_thread(self._plan, msgspec.convert(answer["machines"], list[Machine]))
        assert self._keeper.stdin is not None
        with suppress(ConnectionError):  # it has ended; the answer says so
            self._keeper.stdin.write(msgspec.json.encode(planned.placement) + b"\n")
            await self._keeper.stdin.drain()
        self.environment |= (await self._answer(self._keeper))["variables"]
        if joining:  # else the launcher has said it
            for line in planned.lines:
                progress(line)

    async def close(self) -> None:
        """End what still runs; end Ray, if it was started here, and give up what is reserved on a cluster."""
        await self.kill()
        keeper = self._keeper
        if keeper is None or keeper.returncode is not None:
            return
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            # While Ray starts it reads nothing, and Ray is of no use any more.
            await asyncio.wait_for(keeper.wait(), _END_S if self._ray_started else 0)
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(keeper.pid, signal.SIGKILL)
            await keeper.wait()

    async def _answer(self, keeper: asyncio.subprocess.Process) -> dict[str, Any]:
        assert keeper.stdout is not None
        async for line in keeper.stdout:
            if line.startswith(_MARK.encode()):
                answer: dict[str, Any] = json.loads(line.removeprefix(_MARK.encode()))
                if "error" in answer:
                    raise ServiceError(str(answer["error"]))
                return answer
        log = self._log_dir / "ray.log"
        raise ServiceError(f"Ray could not be started: it ended with status {await keeper.wait()}, see {log}")


def main() -> int:
    """Start Ray and hold what is reserved until standard input closes."""
    # Signals may be sent to all processes of a job; this one ends when the launcher ends it. Ray's own
    # handler aborts at SIGTERM, but in its workers, which inherit the environment, it explains crashes.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.environ[_NO_HANDLER] = "1"
    from unstable_stream.services.launch.ray.cluster import cluster_machines, reserve, start_local, stop_local

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
