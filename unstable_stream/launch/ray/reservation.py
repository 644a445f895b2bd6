"""The process that holds a run's GPUs on a cluster: ``python -m unstable_stream.launch.ray.reservation``.

A reservation ends with the process that made it, and Ray ends a process that is connected to it, without a
word, when the cluster's head is lost. The launcher must outlive that, to say how the run is resumed; so it
does not stay connected, and this process stands for it. It reads the placement as a line of JSON, answers
with a line of JSON, and ends when its standard input closes.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from unstable_stream.errors import ServiceError, UnstableStreamError
from unstable_stream.runs.placement import Placement

__all__ = ["Reservation"]

_MARK: Final = "reservation: "
_END_S: Final = 20.0


class Reservation:
    """The launcher's handle of that process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        """Use :meth:`make` instead."""
        self._process = process
        self.variables: dict[str, str] = {}
        """Environment variables by which services find the plan and the reservation."""

    @classmethod
    async def make(cls, placement: Placement, environment: Mapping[str, str]) -> "Reservation":
        """Reserve what a plan wants on the cluster that ``RAY_ADDRESS`` in ``environment`` names.

        Raises:
            ServiceError: the GPUs were not free in time, or the cluster does not answer.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "unstable_stream.launch.ray.reservation",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C reaches only the launcher
        )
        made = cls(process)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(msgspec.json.encode(placement) + b"\n")
            answer: dict[str, Any] | None = None
            async for line in process.stdout:
                if line.startswith(_MARK.encode()):
                    answer = json.loads(line.removeprefix(_MARK.encode()))
                    break
            if answer is None:
                raise ServiceError(
                    f"the GPUs could not be reserved: Ray ended with status {await process.wait()}"
                )
            if "error" in answer:
                raise ServiceError(str(answer["error"]))
        except BaseException:
            await made.close()
            raise
        made.variables = answer["variables"]
        return made

    async def close(self) -> None:
        """Give up what is reserved."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def main() -> int:
    """Hold a reservation until standard input closes."""
    from unstable_stream.launch.ray.cluster import connect
    from unstable_stream.launch.ray.placement import reserve

    placement = msgspec.json.decode(sys.stdin.buffer.readline(), type=Placement)
    try:
        connect()
        answer: dict[str, Any] = {"variables": reserve(placement)}
    except UnstableStreamError as error:
        answer = {"error": str(error)}
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)
    if "error" not in answer:
        sys.stdin.buffer.read()
    return int("error" in answer)


if __name__ == "__main__":
    sys.exit(main())
