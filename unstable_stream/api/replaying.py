"""A slice of recorded history, streamed again: to a loop, to text, a log, a plug-in or a learner."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from unstable_stream.api.loops import iterate, wait_for
from unstable_stream.api.place import Place
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import Event, Metrics, encode_event
from unstable_stream.history.hindsight.offline import (
    OfflineProgress,
    find_recorded_run,
    load_offline_config,
    train_offline,
)
from unstable_stream.history.hindsight.replay import PluginTally, copy_into, paced, rehearse, write_lines
from unstable_stream.log.open import open_log_at
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

__all__ = ["OfflineProgress", "PluginTally", "Progress", "Replay", "ReplaySource", "encode_event"]

ReplaySource: TypeAlias = Literal["log", "archive"]

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many records have been read, and how many there are to read."""

_RANGE: Final = re.compile(r"(?P<topic>[\w.-]+)\[(?P<partition>\d+)\]@(?P<start>\d*)\.\.(?P<end>\d*)")


@dataclass
class Replay:
    """A slice of history in its original order. Iterating over it yields its events.

    Raises:
        ConfigError: a source, an offset range or a condition that cannot be understood.
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
        if self.source not in ("log", "archive"):
            raise ConfigError(f"--source {self.source!r}: expected log or archive")
        self._ranges = dict(map(_range, self.offsets))
        self._conditions = [parse_condition(text) for text in self.where]

    def __iter__(self) -> Iterator[Event]:
        return iterate(self._events())

    async def _events(self) -> AsyncGenerator[Event, None]:
        async with self._opened() as (history, _):
            async for piece in self._pieces(history, await self._slice(history)):
                for event in readable_events(piece.records):
                    yield event

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[tuple[History, EventLog | None]]:
        """Yield the history, and the log it is from if it is not an archive."""
        if self.source == "archive":
            archived = ArchiveHistory(self.place.archive, self.log_id)
            try:
                yield archived, None
            finally:
                await archived.close()
            return
        async with self.place.opened_history() as log:
            yield LogHistory(log), log

    async def _slice(self, history: History) -> Slice:
        run_id = None
        if self.run is not None:
            try:
                run_id, _ = await find_recorded_run(history, self.run)
            except RunError:
                self.place.refuse_dropped(self.run, exact=False)
                raise
            self.place.refuse_dropped(run_id)
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

    def write(self, write: Callable[[bytes], None]) -> None:
        """Give it to ``write`` as JSON lines."""

        async def work() -> None:
            async with self._opened() as (history, _):
                await write_lines(self._pieces(history, await self._slice(history)), write)

        wait_for(work())

    def copy(self, into: str) -> int:
        """Append it to a log (``kafka://HOST:PORT``, a .sqlite file or a directory); return the count."""

        async def work() -> int:
            async with self._opened() as (history, log):
                wanted = await self._slice(history)
                topics: dict[str, int] = {}
                for at in await wanted.of(history):
                    topics[at.topic] = max(topics.get(at.topic, 0), at.partition + 1)
                if log is not None:
                    topics = {name: count for name, count in (await log.topics()).items() if name in topics}
                target = _open_target(into)
                try:
                    return await copy_into(self._pieces(history, wanted), log, target, topics)
                finally:
                    await target.close()

        return wait_for(work())

    def rehearse(
        self, plugin: Plugin | str, emit: Callable[[Sequence[Metrics]], object] = lambda metrics: None
    ) -> PluginTally:
        """Give it to a plug-in without storing anything; ``emit`` is given the metrics that come of it."""
        loaded = load_plugin(plugin) if isinstance(plugin, str) else plugin

        async def work() -> PluginTally:
            async with self._opened() as (history, _):
                pieces = self._pieces(history, await self._slice(history))
                return await rehearse(pieces, loaded, lambda metrics: emit(list(metrics)))

        return wait_for(work())

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
        return wait_for(self._train(Path(config), overrides, epochs, progress, on_start))

    async def _train(
        self,
        path: Path,
        overrides: Sequence[str],
        epochs: int,
        progress: OfflineProgress | None,
        on_start: Callable[[str, int], None],
    ) -> str:
        assert self.run is not None
        place = self.place
        async with self._opened() as (history, source):
            wanted = await self._slice(history)
            _, recorded = await find_recorded_run(history, self.run)
            config = load_offline_config(recorded, path, overrides, log=place.log)
            log = source or open_log_at(place.log, place.data.log)
            try:
                run_id = await train_offline(
                    history,
                    wanted,
                    config,
                    place.data,
                    log,
                    epochs=epochs,
                    progress=progress,
                    on_start=lambda run_id: on_start(run_id, config.learner.iterations),
                )
                if source is None:
                    await history.close()  # reading and writing the archive exclude each other
                if place.log == "local":
                    await _archive(log, place)
                return run_id
            finally:
                if log is not source:
                    await log.close()


async def _archive(log: EventLog, place: Place) -> None:
    """Put the new run into the archive too; on a shared log its archiver does."""
    from unstable_stream.services.workers.archiver import run_archiver

    stop = asyncio.Event()
    stop.set()
    await run_archiver(log, place.archive, stop=stop)


def _open_target(location: str) -> EventLog:
    path = Path(location)
    file = path if path.suffix == ".sqlite" else DataDir(path).log
    return open_log_at(location if "://" in location else "local", file)


def _range(text: str) -> tuple[TopicPartition, tuple[int | None, int | None]]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(f"--offsets {text!r}: expected TOPIC[PARTITION]@FROM..TO, e.g. steps[3]@100..200")
    start, end = match["start"], match["end"]
    return (
        TopicPartition(match["topic"], int(match["partition"])),
        (int(start) if start else None, int(end) if end else None),
    )
