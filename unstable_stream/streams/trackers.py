"""Trackers: whoever wants every metric of a run as it is published, e.g. to send it elsewhere.

A tracker is a small class with :meth:`Tracker.log`. It is hosted like a plug-in consumer of the topic
``metrics``, so it goes on where it was after a restart and is given all it missed. After a kill it may be
given the last metrics a second time.
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
"""A tracker whose constructor has this parameter is given the run's own directory by it."""


class Tracker(Protocol):
    """Takes metrics. It may also have ``close()``, called when nothing more comes."""

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Take what ``source`` measured at ``time_ms`` (Unix milliseconds).

        Args:
            values: name to number; the names are explained in ``docs/metrics.md``.
            run_id: the run.
            source: the service or plug-in that measured.
            step: the learner update it belongs to, ``None`` if it belongs to none.
            time_ms: when it was measured.
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
        ConfigError: it cannot be loaded, does not take its arguments, or has no fitting ``log``.
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
    """Return the plug-in that hands every metric on the log to the tracker that ``make`` makes."""

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
