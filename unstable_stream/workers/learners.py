"""All trained models of a run, in one process: a learner service for each.

They consume, decide and publish on their own, and take turns at computing: they share the learner's place on
the machines, one copy of the base model, PyTorch's random generators, and the processes of the other ranks,
if there are any (:mod:`unstable_stream.workers.learner_ranks`).
"""

import asyncio

from unstable_stream.log.port import EventLog
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import Share
from unstable_stream.workers.learner import LearnerService

__all__ = ["Learners"]


class Learners:
    """The learner services of a run; most runs have one."""

    def __init__(
        self, config: RunConfig, run_id: str, data: DataDir, model_path: str, share: Share | None = None
    ) -> None:
        """Load the base model; the arguments are those of :class:`LearnerService`."""
        self._services: list[LearnerService] = []
        try:
            for model in config.model_names:
                first = self._services[0] if self._services else None
                service = LearnerService(config, run_id, data, model_path, share, model=model, beside=first)
                self._services.append(service)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End what the services have started."""
        for service in self._services:
            service.close()

    async def train(self, log: EventLog, stop: asyncio.Event) -> int:
        """Train every model to its end, or until ``stop`` is set; see :meth:`LearnerService.train`. Return
        the number of updates that every model has had.

        The first failure ends all: what the others have published stays, and a restart goes on from there.
        """
        training = [asyncio.ensure_future(service.train(log, stop)) for service in self._services]
        try:
            return min(await asyncio.gather(*training))
        finally:
            for each in training:
                each.cancel()
            await asyncio.gather(*training, return_exceptions=True)
