"""Trackers take every metric of a run when it is published, e.g. to send it elsewhere.

A tracker is a small class with :meth:`Tracker.log`. It runs like a plug-in that reads topic ``metrics``. So
after a restart it goes on from its position and misses nothing. After a kill it may receive the last metrics
a second time.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

from unstable_stream.events import Metrics
from unstable_stream.extensions import KINDS, Reference, Spec, build, load
from unstable_stream.extensions.build import refuse
from unstable_stream.streams.plugins import Context, Plugin

__all__ = ["JsonLinesTracker", "Tracker", "build_tracker", "tracker_plugin"]

_DIRECTORY: Final = "directory"
"""A constructor with a parameter of this name receives the run's own directory."""


class Tracker(Protocol):
    """Takes metrics. It may also have ``close()``, which is called after the last one."""

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Take the values that ``source`` measured.

        Args:
            values: name to number; the names are explained in ``docs/metrics.md``.
            run_id: the run.
            source: the service or plug-in that measured them.
            step: the learner update that they belong to; ``None`` if they belong to none.
            time_ms: the time of the measurement, Unix milliseconds.
        """


class JsonLinesTracker:
    """Writes one JSON object a line to ``metrics.jsonl`` in the run's directory."""

    def __init__(self, directory: str) -> None:
        path = Path(directory)
        path.mkdir(parents=True, exist_ok=True)
        self._file = (path / "metrics.jsonl").open("a", encoding="utf-8")

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Append a line: ``run_id``, ``source``, ``step``, ``time_ms`` and ``values``."""
        line = {"run_id": run_id, "source": source, "step": step, "time_ms": time_ms, "values": values}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def build_tracker(spec: Spec, directory: Path, where: str = "trackers") -> Tracker:
    """Return a fresh tracker.

    Raises:
        ConfigError: the tracker cannot be loaded, does not take its arguments, or has no ``log`` that fits.
    """
    kind = KINDS["tracker"]
    reference = Reference.parse(spec, where)
    arguments: Mapping[str, Any] = reference.arguments
    maker = load(kind, reference, where)
    if callable(maker) and _DIRECTORY in inspect.signature(maker).parameters:
        arguments = {_DIRECTORY: str(directory), **arguments}
    tracker = build(kind, Reference(reference.target, arguments).spec, where, calls_functions=True)
    log = getattr(tracker, "log", None)
    if not callable(log):
        raise refuse(kind, reference, where, "has no method log")
    try:
        inspect.signature(log).bind({}, run_id="", source="", step=None, time_ms=0)
    except TypeError as error:
        raise refuse(kind, reference, where, f"has a log that cannot be called so: {error}") from error
    return cast(Tracker, tracker)


def tracker_plugin(name: str, make: Callable[[], Tracker]) -> Plugin:
    """Return a plug-in that passes every metric of the log to the tracker from ``make``."""

    class Handler:
        def __init__(self) -> None:
            self._tracker = make()

        def handle(self, event: Metrics, context: Context) -> None:
            self._tracker.log(
                dict(event.values),
                run_id=event.run_id,
                source=event.source,
                step=event.update,
                time_ms=event.occurred_at_ms,
            )

        def stop(self) -> None:
            close = getattr(self._tracker, "close", None)
            if close is not None:
                close()

    return Plugin(name, (Metrics.TOPIC,), (Metrics,), Handler, None, retries=3, backoff_s=0.5)
