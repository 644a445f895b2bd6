"""The services of a run as supervised processes, with Ray for engines, rollout workers and the learner."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from unstable_stream.launch.plan import RunPlan
from unstable_stream.launch.ray.keeper import RayKeeper
from unstable_stream.launch.supervisor import Progress, Supervisor
from unstable_stream.runs.placement import Machine

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
