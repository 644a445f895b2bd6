"""The number of engines that a run shall have: as configured, as a person wants, as there is room."""

from collections.abc import Iterable

from unstable_stream.events import EnginesWanted, Event
from unstable_stream.runs.engine_sections import EngineRange


class WantedEngines:
    """The fold of a run's :class:`~unstable_stream.events.EnginesWanted`: the last one counts."""

    def __init__(self, configured: int | EngineRange) -> None:
        self._configured = configured
        self.by_person: int | None = None
        """The number that a person wants; ``None``: as configured."""

    def apply(self, events: Iterable[Event], run_id: str) -> None:
        """Fold events; those of other runs change nothing."""
        for event in events:
            if isinstance(event, EnginesWanted) and event.run_id == run_id:
                self.by_person = event.engines

    def count(self, room: int) -> int:
        """Return how many there shall be, where there is room for ``room``.

        A range follows the room. What a person wants, or a fixed number, is tried in any case.
        """
        if self.by_person is not None:
            return self.by_person
        if isinstance(self._configured, int):
            return self._configured
        return min(self._configured.max, max(self._configured.min, room))

    def why(self) -> str:
        """Return in a few words where the number comes from."""
        if self.by_person is not None:
            return f"a person wants {self.by_person}"
        if isinstance(self._configured, int):
            return f"collector.num_actors is {self._configured}"
        return f"the cluster has room, up to {self._configured.max}"
