"""Find what a service has recorded since its start: a failure after progress is not the one before."""

from contextlib import aclosing
from typing import Final

from unstable_stream.errors import EventLogError
from unstable_stream.events import Event, GameOutcome, LearnerUpdate, Metrics, Rating, Step
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log.reading import ends_of, read_to_end, readable_event
from unstable_stream.log_lines import get_logger
from unstable_stream.tracking.service_reports import ARCHIVER

__all__ = ["RecordedProgress"]

_ACHIEVES: Final[dict[str, tuple[type[Event], ...]]] = {
    "learner": (LearnerUpdate,),
    "collector": (GameOutcome,),
    "processors": (Step, Rating),
    "archiver": (Metrics,),
}

_logger = get_logger(__name__)


class RecordedProgress:
    """Compares the log at a service's start with the log at its end.

    The learner has made progress if it made an update, the collector if a game was finished, the processors
    if a step or rating was published, the archiver if it reported what it stored.
    """

    def __init__(self, log: EventLog, run_id: str) -> None:
        self._event_log = log
        self._run_id = run_id
        self._starts: dict[str, dict[TopicPartition, int]] = {}

    async def begin(self, service: str) -> None:
        """Remember where the log ends at the start of a service."""
        try:
            self._starts[service] = await ends_of(self._event_log, _topics(service))
        except EventLogError as error:
            self._starts.pop(service, None)
            _logger.warning("progress is unknown", service=service, reason=str(error))

    async def made(self, service: str) -> bool:
        """Return whether the service achieved something since; true if that cannot be known."""
        if service not in self._starts or service not in _ACHIEVES:
            return True
        published = read_to_end(
            self._event_log, _topics(service), run_id=self._run_id, starts=self._starts[service]
        )
        try:
            async with aclosing(published) as records:
                async for record in records:
                    event = readable_event(record)
                    if event is not None and event.run_id == self._run_id and _is_progress(service, event):
                        return True
        except EventLogError as error:
            _logger.warning("progress is unknown", service=service, reason=str(error))
            return True
        return False


def _topics(service: str) -> list[str]:
    return [kind.TOPIC for kind in _ACHIEVES.get(service, ())]


def _is_progress(service: str, event: Event) -> bool:
    if isinstance(event, Metrics) and event.source != ARCHIVER:
        return False
    return isinstance(event, _ACHIEVES[service])
