"""A place: the data directory and the event log that a call works on. Every call is told both in one way."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from unstable_stream.api.loops import wait_for
from unstable_stream.errors import ArchiveError
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.log.stores.archive_address import ArchiveAddress, archive_exists
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR, DataDir

if TYPE_CHECKING:
    from unstable_stream.events import Event
    from unstable_stream.runs.config import RunConfig

__all__ = ["DEFAULT_DATA_DIR", "DEFAULT_LOG", "ArchiveAddress", "Place"]

DEFAULT_LOG = "local"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A data directory, and a log that is a file in it (``local``) or elsewhere (``kafka://HOST:PORT``)."""

    root: Path = DEFAULT_DATA_DIR
    log: str = DEFAULT_LOG

    @classmethod
    def at(cls, data: Path | str | None = None, log: str | None = None) -> "Place":
        """Return the place for what a caller gave; ``None`` is the default."""
        return cls(DEFAULT_DATA_DIR if data is None else Path(data), DEFAULT_LOG if log is None else log)

    @property
    def named(self) -> dict[str, Any]:
        """The place as the arguments ``data`` and ``log`` of a call."""
        return {"data": self.root, "log": self.log}

    @property
    def data(self) -> DataDir:
        """The files of the data directory."""
        return DataDir(self.root)

    @property
    def archive(self) -> ArchiveAddress:
        """The archive: a DuckDB file, or the address of a shared archive."""
        return self.data.archive

    @property
    def has_archive(self) -> bool:
        """Whether there is an archive."""
        return archive_exists(self.archive)

    @property
    def options(self) -> str:
        """Options that lead a command here, each after a space; none for the defaults."""
        return self.data.options(self.log)

    def opened_log(self) -> AbstractAsyncContextManager[EventLog]:
        """Open the log to look at what is there, and close it.

        Raises:
            EventLogError: ``local``, and the data directory has no event log.
        """
        return opened_log(self.log, self.data.log, existing=True)

    @asynccontextmanager
    async def opened_history(self) -> AsyncIterator[EventLog]:
        """Open the log to look at history: records that expired in it are read from the archive.

        Raises:
            EventLogError: ``local``, and the data directory has no event log.
            ArchiveError: records have expired, and the archive cannot be read.
        """
        async with self.opened_log() as log:
            if not self.has_archive:
                yield log
                return
            from unstable_stream.services.streams.tiered_log import with_archive  # loads DuckDB

            async with with_archive(log, self.archive) as history:
                yield history

    def ask_log(self, question: Callable[[EventLog], Awaitable[T]]) -> T:
        """Ask the log, opened as by :meth:`opened_log`, and return the answer; for callers without a loop."""
        return wait_for(_answered(self.opened_log(), question))

    def ask_history(self, question: Callable[[EventLog], Awaitable[T]]) -> T:
        """Ask history, opened as by :meth:`opened_history`, and return the answer."""
        return wait_for(_answered(self.opened_history(), question))

    def each_event(self, run_id: str, topics: Sequence[str], apply: Callable[["Event"], object]) -> None:
        """Call ``apply`` with each event of a run in these topics; history is opened as for a question."""
        from unstable_stream.runs.starts import run_events  # loads all events

        async def read(log: EventLog) -> None:
            async for _, event in run_events(log, topics, run_id):
                apply(event)

        self.ask_history(read)

    def allowed_code(
        self, run_id: str, allow_code: Sequence[str] | None, config: "RunConfig", recorded: "RunConfig"
    ) -> list[str] | None:
        """Return patterns of the code that a run may load here, for ``extensions.confined``.

        Args:
            run_id: the run whose recorded configuration is about to be used.
            allow_code: patterns beside the run's own code, e.g. ``mypackage.*``; ``None``: no confinement.
            config: what the caller gave; the code it names besides ``recorded`` is allowed.
            recorded: the configuration that the log holds.
        """
        if allow_code is None:
            return None
        from unstable_stream.runs.code import own_patterns, patterns_of  # loads all of the configuration

        own = own_patterns(self.data.own_code(run_id))
        return [*own, *allow_code, *patterns_of(config, besides=recorded)]

    def dropped(self) -> frozenset[str]:
        """Return the ids of the runs that were dropped from the archive, if there is one that can be read."""
        from unstable_stream.archive import dropped_ids  # loads DuckDB

        return dropped_ids(self.archive) if self.has_archive else frozenset()

    def refuse_dropped(self, run: str) -> None:
        """Refuse a run that was dropped from the archive: what the log still has of it may be a half.

        Args:
            run: its id, the beginning of it, or its name.

        Raises:
            RunError: it was dropped.
        """
        if not self.has_archive:
            return
        from unstable_stream.archive import dropped_error, open_archive  # loads DuckDB

        try:
            with open_archive(self.archive, records_only=True) as connection:
                dropped = dropped_error(connection, run)
        except ArchiveError:
            return  # whoever needs the archive is told what is wrong with it
        if dropped is not None:
            raise dropped


class PlacedRun(Protocol):
    """A run, which knows its place."""

    @property
    def place(self) -> Place:
        """The place that recorded it."""

    @property
    def id(self) -> str:
        """Its id."""


def placed(named: str | PlacedRun, data: Path | str | None, log: str | None) -> tuple[Place, str]:
    """Return the place and the name of a run, a checkpoint or a policy."""
    return (Place.at(data, log), named) if isinstance(named, str) else (named.place, named.id)


async def _answered(
    opened: AbstractAsyncContextManager[EventLog], question: Callable[[EventLog], Awaitable[T]]
) -> T:
    async with opened as log:
        return await question(log)
