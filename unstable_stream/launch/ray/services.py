"""The services of a run as supervised processes, with Ray for engines, rollout workers and the learner."""

import asyncio
from collections.abc import Callable

from unstable_stream.launch.supervisor import Supervisor

__all__ = ["RayServices"]


class RayServices(Supervisor):
    """A supervisor that starts Ray before the services that need it, and ends it with them."""

    async def prepare(self, progress: Callable[[str], None]) -> None:
        """Start Ray, or connect to the cluster that ``RAY_ADDRESS`` names.

        Raises:
            ServiceError: Ray did not start.
        """
        progress("starting Ray")
        # In a thread, so that other services can start meanwhile and Ctrl-C works.
        self.environment["RAY_ADDRESS"] = await asyncio.to_thread(_start)

    async def close(self) -> None:
        """End Ray, if it was started here."""
        await asyncio.to_thread(_stop)


def _start() -> str:
    from unstable_stream.launch.ray.cluster import start_local  # loads Ray

    return start_local()


def _stop() -> None:
    from unstable_stream.launch.ray.cluster import stop_local

    stop_local()
