"""What a plug-in is given beside each event."""

import math
from typing import Any, Final, NamedTuple

import structlog

from unstable_stream.errors import PluginError
from unstable_stream.events import Event, Metrics, event_id

__all__ = ["Context", "Position"]

_NO_STATE: Final = object()


class Position(NamedTuple):
    """Where an event lies in the log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Context:
    """One event's surroundings: where it is from, the state it is folded into, and where results go."""

    __slots__ = ("_emitted", "_event", "_plugin_name", "_state", "position")

    position: Position
    """Topic, partition and offset of the event."""

    def __init__(self, plugin_name: str, event: Event, position: Position, state: object = _NO_STATE) -> None:
        """Made by the host, once for every event."""
        self._plugin_name = plugin_name
        self._event = event
        self._state = state
        self._emitted: dict[str, Metrics] = {}
        self.position = position

    @property
    def run_id(self) -> str:
        """The run the event belongs to."""
        return self._event.run_id

    @property
    def state(self) -> Any:  # whatever the plug-in's own factory makes
        """The state of this run in this partition of the topic; change it in place.

        Raises:
            PluginError: the plug-in was declared without ``state=…``.
        """
        if self._state is _NO_STATE:
            raise PluginError(
                f"plug-in {self._plugin_name!r} keeps no state: declare it with "
                "@consumer(…, state=dict), or with a dataclass of your own instead of dict"
            )
        return self._state

    @property
    def logger(self) -> Any:  # structlog publishes no usable type for a bound logger
        """A logger that names the plug-in, the run and the position."""
        return structlog.get_logger(f"plugin/{self._plugin_name}").bind(
            plugin=self._plugin_name, run=self.run_id, position=str(self.position)
        )

    def emit(self, name: str, value: float, *, update: int | None = None) -> None:
        """Publish one number to the topic ``metrics``, beside the built-in ones, if the event succeeds.

        Its id is derived from plug-in, event and ``name``: however often the event is handled, it counts
        once.

        Args:
            name: of the metric.
            value: a finite number.
            update: the learner update it belongs to, if it belongs to one.

        Raises:
            ValueError: the number is not finite, or this event has emitted ``name`` before.
        """
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"metric {name!r} is {number}: expected a finite number")
        if name in self._emitted:
            raise ValueError(f"metric {name!r} was emitted for this event before: one value for each name")
        source = f"plugin/{self._plugin_name}"
        self._emitted[name] = Metrics(
            event_id=event_id(self.run_id, "metrics", source, self._event.event_id, name),
            run_id=self.run_id,
            occurred_at_ms=self._event.occurred_at_ms,
            source=source,
            values={name: number},
            update=update,
        )

    @property
    def emitted(self) -> list[Metrics]:
        """What this event has emitted so far."""
        return list(self._emitted.values())
