"""The services of a run as supervised processes, with Ray for engines, rollout workers and the learner."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unstable_stream.launch.plan import RunPlan
from unstable_stream.launch.ray.reservation import Reservation
from unstable_stream.launch.supervisor import Progress, Supervisor
from unstable_stream.runs.placement import Machine, Placement

__all__ = ["RayServices"]


class RayServices(Supervisor):
    """A supervisor that starts Ray before the services that need it, and ends it with them."""

    def __init__(
        self,
        arguments: Sequence[str],
        log_dir: Path,
        *,
        plan: Callable[[list[Machine]], RunPlan],
        max_restarts: int,
        progress: Progress,
        environment: Mapping[str, str],
    ) -> None:
        """Take what a supervisor takes, what machines are asked for, and ``plan``, which places learner and
        engines on Ray's machines.
        """
        super().__init__(
            arguments, log_dir, max_restarts=max_restarts, progress=progress, environment=environment
        )
        self._plan = plan
        self._reservation: Reservation | None = None

    async def prepare(self, progress: Callable[[str], None]) -> None:
        """Start Ray, or connect to the cluster that ``RAY_ADDRESS`` names, and reserve what the run wants.

        Raises:
            ServiceError: Ray did not start, or its GPUs are taken.
            ConfigError: learner and engines cannot be placed on its machines.
        """
        progress("starting Ray")
        joining = "RAY_ADDRESS" in os.environ
        # In a thread, so that other services can start meanwhile and Ctrl-C works.
        self.environment["RAY_ADDRESS"] = await asyncio.to_thread(_start)
        planned = await asyncio.to_thread(_place, self._plan, joining)
        if joining:
            # Who is connected to a cluster whose head is lost is ended by Ray, without a word.
            await asyncio.to_thread(_stop)
        if joining and planned.placement.uses_gpus:
            self._reservation = await Reservation.make(planned.placement, self.environment)
            self.environment |= self._reservation.variables
        else:
            self.environment |= await asyncio.to_thread(_reserve, planned.placement)
        if joining:  # else the launcher has said it
            for line in planned.lines:
                progress(line)

    async def close(self) -> None:
        """End Ray, if it was started here, and give up what is reserved on a cluster."""
        if self._reservation is not None:
            await self._reservation.close()
        await asyncio.to_thread(_stop)


def _start() -> str:
    from unstable_stream.launch.ray.cluster import start_local  # loads Ray

    return start_local()


def _place(plan: Callable[[list[Machine]], RunPlan], joining: bool) -> RunPlan:
    from unstable_stream.launch.ray.placement import plan_on_cluster

    return plan_on_cluster(plan, joining=joining)


def _reserve(placement: Placement) -> dict[str, str]:
    from unstable_stream.launch.ray.placement import reserve

    return reserve(placement)


def _stop() -> None:
    from unstable_stream.launch.ray.cluster import stop_local

    stop_local()
