"""The consumers and trackers that a run's configuration names; they never hold back the run.

A tracker takes every metric of a run when it is published, e.g. to send it elsewhere. It is a small class
with :meth:`RunTracker.log`. It runs like a plug-in that reads topic ``metrics``. So after a restart it goes
on from its position and misses nothing. After a kill it may receive the last metrics a second time.
``unstable-stream track`` gives one the metrics of a run afterwards; :class:`Received` keeps it from giving
again what the tracker has already.

An :class:`EventTracker` takes events of several topics instead of metrics. It is a fold that needs all of a
run from its beginning, so only ``track`` gives them to it.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, runtime_checkable

from unstable_stream.console import without_logins
from unstable_stream.errors import ConfigError
from unstable_stream.events import Event, Metrics, RunStarted
from unstable_stream.events.id_sets import DIGEST_BYTES, digest
from unstable_stream.extensions import KINDS, Reference, Spec, build, load
from unstable_stream.extensions.build import refuse
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.address import path_part
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.history import read_history
from unstable_stream.services.streams.plugins import Context, Plugin, load_plugin
from unstable_stream.services.streams.plugins.host import run_plugin

_OF_EVENTS: Final = frozenset({"otel", "openlineage"})
"""Built-in trackers that take events: a run is refused with them before any library is loaded."""


class Parent(NamedTuple):
    """The point of another run that a run was forked from."""

    run_id: str
    update: int
    """The update of the parent that the fork goes on from."""
    directory: Path
    """The parent's own directory, if a tracker of the same place wrote about it."""


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


class Piece(NamedTuple):
    """A part of a run that an event tracker sends at once."""

    piece_id: str
    """No two pieces of any run have the same."""
    content: Any
    """In a form that the tracker's own ``send`` understands."""


@runtime_checkable
class EventTracker(Protocol):
    """Takes the events of a run, in their order, and sends what it makes of them."""

    topics: Sequence[str]
    """The topics that it takes; effects stand before their causes."""
    batch: int
    """The most pieces that it is given at once."""
    unit: str
    """The word for its pieces, in the plural."""

    def handle(self, event: Event) -> Sequence[Piece]:
        """Return what is complete with this event; the same events give the same pieces."""

    def rest(self) -> Sequence[Piece]:
        """Return what is incomplete at the end of the history."""

    def send(self, pieces: Sequence[Piece]) -> None:
        """Send them; once this has returned, they are not given again."""

    def close(self) -> None:
        """Let go of files and connections."""


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

    @classmethod
    def by(cls, directory: Path, spec: Spec, where: str = "trackers") -> Self:
        """Name the file of a tracker that a configuration names: each address that is sent to has its own."""
        named = Reference.parse(spec, where).arguments
        addresses = [named[key] for key in ("url", "endpoint", "tracking_uri") if named.get(key)]
        ending = f"-{digest(str(addresses).encode()).hex()[:8]}" if addresses else ""
        return cls(directory, f"{tracker_title(spec, where)}{ending}")

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


def parent_of(began: RunStarted | None, directory: Path) -> Parent | None:
    """Return the point that a run was forked from, ``None`` if it is no fork; ``directory`` is the run's."""
    if began is None or began.parent_run_id is None or began.parent_update is None:
        return None
    home = directory.with_name(path_part(began.parent_run_id, "parent_run_id"))
    return Parent(began.parent_run_id, began.parent_update, home)


def build_tracker(
    spec: Spec, directory: Path, where: str = "trackers", parent: Parent | None = None
) -> RunTracker | EventTracker:
    """Return a fresh tracker. Its constructor is given ``directory`` and ``parent`` if it asks for them.

    Raises:
        ConfigError: the tracker cannot be loaded, does not take its arguments, or has no ``log`` that fits.
    """
    kind = KINDS["tracker"]
    reference = Reference.parse(spec, where)
    maker = load(kind, reference, where)
    asked = inspect.signature(maker).parameters if callable(maker) else {}
    offered = {"directory": str(directory), "parent": parent}
    arguments = {name: value for name, value in offered.items() if name in asked} | {**reference.arguments}
    tracker: Any = build(kind, Reference(reference.target, arguments).spec, where, calls_functions=True)
    if isinstance(tracker, EventTracker):
        return tracker
    if not callable(getattr(tracker, "log", None)):
        raise refuse(kind, reference, where, "has no method log")
    try:
        inspect.signature(tracker.log).bind({}, run_id="", source="", step=None, time_ms=0)
    except TypeError as error:
        raise refuse(kind, reference, where, f"has a log that cannot be called so: {error}") from error
    checked: RunTracker = tracker
    return checked


def build_metrics_tracker(
    spec: Spec, directory: Path, where: str = "trackers", parent: Parent | None = None
) -> RunTracker:
    """Return a fresh tracker that runs beside a run.

    Raises:
        ConfigError: see :func:`build_tracker`; or it takes events, not metrics.
    """
    tracker = build_tracker(spec, directory, where, parent)
    if isinstance(tracker, EventTracker):
        raise _takes_events(spec, where)
    return tracker


def _takes_events(spec: Spec, where: str) -> ConfigError:
    title = tracker_title(spec, where)
    return ConfigError(
        f"{where}: {title} takes events, not metrics: leave it out here, and give it the run while it goes "
        f"on or afterwards: unstable-stream track RUN --to {title} --follow"
    )


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


def plugins_beside(run: RunContext, began: RunStarted | None = None) -> list[Plugin]:
    """Return the consumers; a tracker becomes a consumer of metrics.

    Raises:
        ConfigError: two have the same name; they would share one group, and each would see only a part of the
            events. Or a tracker takes events, not metrics.
        PluginError: a consumer cannot be loaded.
    """
    plugins = [load_plugin(target) for target in run.config.consumers]
    for place, spec in enumerate(run.config.trackers):
        title, directory, where = tracker_title(spec), run.data.tracking(run.run_id), f"trackers.{place}"
        if title in _OF_EVENTS:
            raise _takes_events(spec, where)
        arguments = str(dict(Reference.parse(spec, where).arguments))
        if without_logins(arguments) != arguments:
            raise ConfigError(
                f"{where}: {title} is given a password in an address, which would be recorded with the run: "
                "set it in the environment, e.g. MLFLOW_TRACKING_URI"
            )
        make = partial(build_metrics_tracker, spec, directory, where, parent_of(began, directory))
        plugins.append(_tracker_plugin(f"tracker-{title}", make, Received.by(directory, spec, where)))
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
    began = (await read_history(log)).run(run.run_id).began
    async with asyncio.TaskGroup() as hosts:
        for plugin in plugins_beside(run, began):
            hosts.create_task(run_plugin(log, plugin, run.data, stop=stop, run_id=run.run_id, drain=True))
