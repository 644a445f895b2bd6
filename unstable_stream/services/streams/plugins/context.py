"""The context that a plug-in receives with each event."""

import math
from typing import Any, Final, NamedTuple

from unstable_stream.console import get_logger
from unstable_stream.errors import PluginError
from unstable_stream.events import Event, Metrics, event_id

_NO_STATE: Final = object()


class Position(NamedTuple):
    """The place of an event in the log."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Context:
    """The context of one event: its position, the state to fold it into, and a way to emit metrics."""

    __slots__ = ("_emitted", "_event", "_plugin_name", "_state", "position")

    position: Position
    """Topic, partition and offset of the event."""

    def __init__(self, plugin_name: str, event: Event, position: Position, state: object = _NO_STATE) -> None:
        """Store the arguments; the host makes one context for every event."""
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
    def state(self) -> Any:  # the type that the plug-in's factory makes
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
        return get_logger(f"plugin/{self._plugin_name}").bind(
            plugin=self._plugin_name, run=self.run_id, position=str(self.position)
        )

    def emit(self, name: str, value: float, *, update: int | None = None) -> None:
        """Publish one number to topic ``metrics``, if handling the event succeeds.

        The id of the metric is computed from plug-in, event and ``name``. If the event is handled again, the
        metric still counts once.

        Args:
            name: the metric's name.
            value: a finite number.
            update: the learner update that the metric belongs to; ``None`` if it belongs to none.

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
        """The metrics emitted for this event so far."""
        return list(self._emitted.values())
