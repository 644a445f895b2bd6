"""The consumers and trackers that a run's configuration names; they never hold back the run.

A tracker takes every metric of a run when it is published, e.g. to send it elsewhere. It is a small class
with :meth:`RunTracker.log`. It runs like a plug-in that reads topic ``metrics``. So after a restart it goes
on from its position and misses nothing. After a kill it may receive the last metrics a second time.
``unstable-stream track`` gives one the metrics of a run afterwards; :class:`Received` keeps it from giving
again what the tracker has already.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

from unstable_stream.errors import ConfigError
from unstable_stream.events import Metrics
from unstable_stream.events.id_sets import DIGEST_BYTES, digest
from unstable_stream.extensions import KINDS, Reference, Spec, build, load
from unstable_stream.extensions.build import refuse
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.address import path_part
from unstable_stream.runs.context import RunContext
from unstable_stream.services.streams.plugins import Context, Plugin, load_plugin
from unstable_stream.services.streams.plugins.host import run_plugin

_DIRECTORY: Final = "directory"
"""A constructor with a parameter of this name receives the run's own directory."""


class RunTracker(Protocol):
    """Takes metrics. It may also have ``close()``, which is called after the last one."""

    def log(
        self, values: dict[str, float], *, run_id: str, source: str, step: int | None, time_ms: int
    ) -> None:
        """Take the values that ``source`` measured.

        Args:
            values: name to number; the names are explained in ``docs/reference/metrics.md``.
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


class Received:
    """The ids of the metrics that a tracker has, 16 bytes each in a hidden file beside what it writes."""

    def __init__(self, directory: Path, title: str) -> None:
        """Name the file; it need not exist."""
        self._path = directory / f".{path_part(title, 'tracker')}.received"

    def read(self) -> set[bytes]:
        """Return the digests of the ids."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return set()
        whole = len(data) - len(data) % DIGEST_BYTES  # a kill may have cut the last one
        return {data[at : at + DIGEST_BYTES] for at in range(0, whole, DIGEST_BYTES)}

    def add(self, event_ids: Iterable[str]) -> None:
        """Note what the tracker has been given."""
        digests = b"".join(digest(event_id.encode()) for event_id in event_ids)
        if not digests:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            cut = file.tell() % DIGEST_BYTES
            if cut:
                file.truncate(file.tell() - cut)
            file.write(digests)


def tracker_title(spec: Spec, where: str = "trackers") -> str:
    """Return a short name of a tracker: ``jsonl``, or the class's name."""
    target = Reference.parse(spec, where).target
    return target.rpartition(":")[2] or target


def build_tracker(spec: Spec, directory: Path, where: str = "trackers") -> RunTracker:
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
    return cast(RunTracker, tracker)


def tell(tracker: RunTracker, event: Metrics) -> None:
    """Give a tracker the numbers of an event; what is not finite is left out."""
    values = {name: value for name, value in event.values.items() if math.isfinite(value)}
    tracker.log(
        values, run_id=event.run_id, source=event.source, step=event.update, time_ms=event.occurred_at_ms
    )


def _tracker_plugin(name: str, make: Callable[[], RunTracker], received: Received) -> Plugin:
    """Return a plug-in that passes every metric of the log to the tracker from ``make``, and notes it."""

    class TrackerHandler:
        def __init__(self) -> None:
            self._tracker = make()

        def handle(self, event: Metrics, context: Context) -> None:
            tell(self._tracker, event)
            received.add([event.event_id])

        def stop(self) -> None:
            close = getattr(self._tracker, "close", None)
            if close is not None:
                close()

    return Plugin(name, (Metrics.TOPIC,), (Metrics,), TrackerHandler, None, retries=3, backoff_s=0.5)


def plugins_beside(run: RunContext) -> list[Plugin]:
    """Return the consumers; a tracker becomes a consumer of metrics.

    Raises:
        ConfigError: two have the same name; they would share one group, and each would see only a part of the
            events.
        PluginError: a consumer cannot be loaded.
    """
    plugins = [load_plugin(target) for target in run.config.consumers]
    for place, spec in enumerate(run.config.trackers):
        title, directory = tracker_title(spec), run.data.tracking(run.run_id)
        make = partial(build_tracker, spec, directory, f"trackers.{place}")
        plugins.append(_tracker_plugin(f"tracker-{title}", make, Received(directory, title)))
    names = [plugin.name for plugin in plugins]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"consumers, trackers: two are named {twice[0]!r}; give one another name, "
            '@consumer(name="..."), or leave it out'
        )
    return plugins


async def serve_beside(log: EventLog, run: RunContext, stop: asyncio.Event) -> None:
    """Host them until ``stop``, then let each read to the end; the first failure ends all."""
    async with asyncio.TaskGroup() as hosts:
        for plugin in plugins_beside(run):
            hosts.create_task(run_plugin(log, plugin, run.data, stop=stop, run_id=run.run_id, drain=True))
