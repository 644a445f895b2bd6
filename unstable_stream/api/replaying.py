"""A slice of history, streamed again: to a loop, to text, a log, a plug-in, a tracker or a learner."""

import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

from unstable_stream.api.loops import iterate, stopped, wait_for
from unstable_stream.api.place import Place
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import Event, Metrics, RunStarted
from unstable_stream.events import encode_event as encode_event
from unstable_stream.extensions import KINDS, Spec
from unstable_stream.history.hindsight.offline import OfflineProgress as OfflineProgress
from unstable_stream.history.hindsight.offline import find_recorded_run, load_offline_config, train_offline
from unstable_stream.history.hindsight.replay import PluginTally, copy_into, paced, rehearse, write_lines
from unstable_stream.history.hindsight.track import Tracked, track
from unstable_stream.log.open import open_log_at, opened_log
from unstable_stream.log.port import EventLog, TopicPartition
from unstable_stream.log.reading import readable_events
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.streams.ordered_history import (
    ArchiveHistory,
    History,
    LogHistory,
    Merged,
    RecordFilter,
    Slice,
    merged,
    parse_condition,
)
from unstable_stream.services.streams.plugins import Plugin, load_plugin
from unstable_stream.services.streams.trackers import (
    EventTracker,
    Received,
    RunTracker,
    build_tracker,
    parent_of,
)

ReplaySource: TypeAlias = Literal["log", "archive"]

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many records have been read, and how many there are to read."""

T = TypeVar("T")

_RANGE: Final = re.compile(r"(?P<topic>[\w.-]+)\[(?P<partition>\d+)\]@(?P<start>\d*)\.\.(?P<end>\d*)")


@asynccontextmanager
async def opened_source(
    place: Place, source: ReplaySource, log_id: str | None
) -> AsyncIterator[tuple[History, EventLog | None]]:
    """Yield the history, and the log it is from if it is not an archive."""
    if source not in ("log", "archive"):
        raise ConfigError(f"source {source!r}: expected log or archive")
    if source == "archive":
        archived = ArchiveHistory(place.archive, log_id)
        try:
            yield archived, None
        finally:
            await archived.close()
        return
    async with place.opened_history() as log:
        yield LogHistory(log), log


@dataclass
class Replay:
    """A slice of history in its original order. Iterating over it yields its events.

    Raises:
        ConfigError: an offset range or a condition that cannot be understood.
    """

    place: Place
    """The place of the history."""
    run: str | None = None
    """Only this run: id or prefix."""
    _: KW_ONLY
    topics: Sequence[str] = ()
    """Only these."""
    from_ms: int | None = None
    """First time, Unix milliseconds."""
    to_ms: int | None = None
    """The time after the last."""
    offsets: Sequence[str] = ()
    """Only these, ``TOPIC[PARTITION]@FROM..TO``."""
    where: Sequence[str] = ()
    """Conditions on events, e.g. ``split=eval`` or ``model=ckpt-*``."""
    speed: float | None = None
    """Times as fast as it happened; ``None``: as fast as possible."""
    source: ReplaySource = "log"
    """``log`` or ``archive``."""
    log_id: str | None = None
    """The log whose records are read, if the archive holds several."""
    progress: Progress = lambda read, total: None
    """Called on the way."""

    def __post_init__(self) -> None:
        self._ranges = dict(map(_range, self.offsets))
        self._conditions = [parse_condition(text) for text in self.where]

    def __iter__(self) -> Iterator[Event]:
        return iterate(self._events())

    async def _events(self) -> AsyncGenerator[Event, None]:
        async with opened_source(self.place, self.source, self.log_id) as (history, _):
            async for piece in self._pieces(history, await self._slice(history)):
                for event in readable_events(piece.records):
                    yield event

    async def _slice(self, history: History) -> Slice:
        run_id = None
        if self.run is not None:
            try:
                run_id = (await find_recorded_run(history, self.run, self.place.dropped())).run_id
            except RunError:
                self.place.refuse_dropped(self.run)
                raise
        return Slice(
            topics=tuple(self.topics),
            ranges=self._ranges,
            filter=RecordFilter(run_id, self.from_ms, self.to_ms, self._conditions),
        )

    async def _pieces(self, history: History, wanted: Slice) -> AsyncIterator[Merged]:
        """Yield the slice when it is due."""
        total = sum(end - start for start, end in (await wanted.of(history)).values())
        async for piece in paced(merged(history, wanted), self.speed):
            yield piece
            self.progress(piece.read, total)

    def _do(self, use: Callable[[History, EventLog | None, Slice], Awaitable[T]]) -> T:
        """Use the history, the log that it is from if it is not an archive, and the slice."""

        async def work() -> T:
            async with opened_source(self.place, self.source, self.log_id) as (history, log):
                return await use(history, log, await self._slice(history))

        return wait_for(work())

    def write(self, write: Callable[[bytes], None]) -> None:
        """Give it to ``write`` as JSON lines."""

        self._do(lambda history, _, wanted: write_lines(self._pieces(history, wanted), write))

    def copy(self, into: str) -> int:
        """Append it to a log (``kafka://HOST:PORT``, a .sqlite file or a directory); return the count."""

        async def copy(history: History, log: EventLog | None, wanted: Slice) -> int:
            topics: dict[str, int] = {}
            for at in await wanted.of(history):
                topics[at.topic] = max(topics.get(at.topic, 0), at.partition + 1)
            if log is not None:
                topics = {name: count for name, count in (await log.topics()).items() if name in topics}
            path = Path(into)
            file = path if path.suffix == ".sqlite" else DataDir(path).log
            async with opened_log(into if "://" in into else "local", file) as target:
                return await copy_into(self._pieces(history, wanted), log, target, topics)

        return self._do(copy)

    def rehearse(
        self, plugin: Plugin | str, emit: Callable[[Sequence[Metrics]], object] = lambda metrics: None
    ) -> PluginTally:
        """Give it to a plug-in without storing anything; ``emit`` is given the metrics that come of it."""
        loaded = load_plugin(plugin) if isinstance(plugin, str) else plugin

        return self._do(
            lambda history, _, wanted: rehearse(
                self._pieces(history, wanted), loaded, lambda metrics: emit(list(metrics))
            )
        )

    def train(
        self,
        config: Path | str,
        *,
        overrides: Sequence[str] = (),
        epochs: int = 1,
        progress: OfflineProgress | None = None,
        on_start: Callable[[str, int], None] = lambda run_id, iterations: None,
    ) -> str:
        """Train a new run on the steps of this one, without playing a game; return the new run's id.

        Args:
            config: a TOML file with what differs from the run's configuration.
            overrides: ``key.path=value``, stronger than the file.
            epochs: how often the steps are gone through.
            progress: updated on the way.
            on_start: told the new run's id and its number of updates.

        Raises:
            ConfigError: no run was named, or it was to be slowed down.
            RunError: there are no such steps.
        """
        if self.run is None or self.speed is not None:
            raise ConfigError(
                "--learner trains on the steps of one run as fast as it can: unstable-stream replay RUN "
                "--learner FILE, without --speed"
            )
        from unstable_stream.services.workers.archiver import run_archiver

        place, run = self.place, self.run

        async def train(history: History, source: EventLog | None, wanted: Slice) -> str:
            recorded = (await find_recorded_run(history, run, place.dropped())).settings
            made = load_offline_config(recorded, Path(config), overrides, log=place.log)
            log = source or open_log_at(place.log, place.data.log)
            try:
                run_id = await train_offline(
                    history,
                    wanted,
                    made,
                    place.data,
                    log,
                    epochs=epochs,
                    progress=progress,
                    on_start=lambda run_id: on_start(run_id, made.learner.iterations),
                )
                if source is None:
                    await history.close()  # reading and writing the archive exclude each other
                if place.log == "local":  # on a shared log its archiver archives the new run
                    await run_archiver(log, place.archive, stop=stopped())
                return run_id
            finally:
                if log is not source:
                    await log.close()

        return self._do(train)


def _range(text: str) -> tuple[TopicPartition, tuple[int | None, int | None]]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--offsets {text!r}: expected TOPIC[PARTITION]@FROM..TO, e.g. steps[3]@100..200")
    start, end = match["start"], match["end"]
    return (
        TopicPartition(match["topic"], int(match["partition"])),
        (int(start) if start else None, int(end) if end else None),
    )


def track_run(
    place: Place,
    run: str,
    to: Spec | RunTracker,
    directory: Path | str | None = None,
    *,
    follow: bool = False,
    source: ReplaySource = "log",
    progress: Progress = lambda read, total: None,
) -> Tracked:
    """Give a tracker all of a run, each piece once, also if it is called again.

    Args:
        place: where the run is recorded.
        run: id or prefix.
        to: ``jsonl``, ``tensorboard``, ``wandb``, ``mlflow``, ``otel``, ``openlineage``, ``{"type": "wandb",
            "project": "UB"}``, a tracker class by reference, or an object with ``log``.
        directory: files are written to ``directory/RUN``; by default ``tracking/RUN`` in the data directory.
        follow: go on until the run ends.
        source: ``log``, with what expired in it from the archive, or only the ``archive``.
        progress: told how many records have been read, and how many there are.

    Raises:
        ConfigError: no such tracker, its library is not installed, or it is not given its arguments.
        RunError: no such run, or the tracker cannot write.
    """
    if follow and source == "archive":
        raise ConfigError("follow reads the log as it grows: leave out source='archive' (--source archive)")

    async def work() -> Tracked:
        async with opened_source(place, source, None) as (history, _):
            found = await find_recorded_run(history, run, place.dropped())
            here = place.data.tracking(found.run_id)
            home = here if directory is None else Path(directory) / here.name
            tracker, received = _tracker_of(to, home, found.began)
            return await track(history, found.run_id, tracker, received, follow=follow, progress=progress)

    return wait_for(work())


def _tracker_of(
    to: Spec | RunTracker, home: Path, began: RunStarted | None
) -> tuple[RunTracker | EventTracker, Received]:
    if isinstance(to, str | dict):
        return build_tracker(to, home, "to", parent_of(began, home)), Received.by(home, to, "to")
    log = getattr(to, "log", None)
    if inspect.isclass(to) or not callable(log):
        raise ConfigError(
            f"to={to!r}: expected {', '.join(KINDS['tracker'].built_in)}, module:Name, or an object with "
            "log(values, *, run_id, source, step, time_ms)"
        )
    return to, Received(home, type(to).__name__)  # type: ignore[return-value]
