"""Remove runs for good: records in log and archive, checkpoints, other files; look first what that frees."""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from unstable_stream.api.dropping import Droppable, drop_run, look_at_run
from unstable_stream.api.place import Place
from unstable_stream.archive import DroppedRun, query
from unstable_stream.errors import LogUnavailableError, RunError
from unstable_stream.events import RunStarted
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import source_header
from unstable_stream.log.stores.archive_address import is_shared
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.history import RunHistory, read_history
from unstable_stream.runs.life import LOST_AFTER_MS
from unstable_stream.services.streams.finished_states import finished_states, forget_states
from unstable_stream.services.streams.plugins.worker import PluginStates
from unstable_stream.services.tracking.lag import run_of_group


@dataclass(frozen=True)
class Removable:
    """A run that may be removed, and what that frees."""

    run: Droppable
    log_bytes: int | None
    """``None``: its log is on Kafka, which lets no record go before its time."""
    checkpoint_bytes: int
    other_bytes: int
    """Output of its processes, files of trackers, what-ifs."""
    elsewhere: str | None
    """The place of its checkpoints, if that is another one; they stay."""

    @property
    def archive_bytes(self) -> int:
        """Its share of the archive, by its records."""
        return round(self.run.share * self.run.archive_bytes)


@dataclass(frozen=True)
class Removed:
    """The result of :func:`remove_runs`."""

    dropped: Sequence[DroppedRun]
    bytes_before: int
    """Of the data directory, as for the next."""
    bytes_after: int
    log_in_use: bool
    """Whether the log's file keeps its size, since another process uses it: the space is used again."""
    deleted_later: bool
    """Whether files with rows of the runs are there for some hours more: of a shared archive, since somebody
    may still read them.
    """


def look_at_runs(place: Place, runs: Sequence[str]) -> list[Removable]:
    """Return what removing runs would free; change nothing.

    Args:
        place: whose log, archive and files.
        runs: each by id, the beginning of it, name or number; one that was dropped from the archive by its
            id.

    Raises:
        RunError: no such run, it is not over, or other runs need it, which are named.
        ArchiveError, ArchiveBusyError: see :func:`~unstable_stream.api.dropping.look_at_run`.
    """
    dropped = place.dropped()
    found = {run.run_id: run for run in (_look(place, run, run in dropped) for run in runs)}

    async def ask(log: EventLog) -> tuple[RunHistory, dict[str, int] | None]:
        return await read_history(log), await run_sizes(log) if isinstance(log, LocalLog) else None

    has_log = place.log != "local" or place.data.log.is_file()
    history, sizes = place.ask_log(ask) if has_log else (RunHistory(), {})
    needed: dict[str, str] = {}
    for run_id, run in found.items():
        needed |= dict.fromkeys(set(run.forks) - found.keys(), f"begins from {run_id}")
        needed |= dict.fromkeys(_players(history, run_id) - {*found, *needed, *dropped}, f"plays {run_id}")
    if needed:
        told = ", ".join(f"{run_id} {why}" for run_id, why in sorted(needed.items()))
        raise RunError(
            f"other runs need what would be removed: {told}. Remove them too: unstable-stream rm "
            f"{' '.join([*found, *sorted(needed)])}{place.options}"
        )
    return [
        Removable(
            run,
            None if sizes is None else sizes.get(run_id, 0),
            bytes_in(place.data.checkpoints(run_id)),
            sum(map(bytes_in, _other_files(place.data, run_id))),
            _elsewhere(history, run_id),
        )
        for run_id, run in found.items()
    ]


def remove_runs(place: Place, runs: Sequence[Removable]) -> Removed:
    """Remove runs that :func:`look_at_runs` returned, after another look. Killed meanwhile, a call with the
    same ids goes on.

    1. Drop them from the archive, whose archiver passes over what comes of them later.
    2. Erase their records in a local log, but those on topic ``runs``, by which a run keeps its number.
    3. Forget their consumer groups there, and what stream processors and plug-ins have saved of them.
    4. Delete their checkpoints and other files in the data directory.
    5. Make the log's file smaller, unless another process uses it.

    Raises:
        RunError: a file cannot be deleted; or see :func:`look_at_runs`.
        PluginError: the state of a plug-in cannot be deleted.
        ArchiveError, ArchiveBusyError: see :func:`look_at_runs`.
    """
    ids = [run.run.run_id for run in runs]
    look_at_runs(place, ids)
    before, in_use = bytes_in(place.root), False

    async def erase(log: EventLog) -> None:
        if isinstance(log, LocalLog):
            for run_id in ids:
                await log.erase(source_header(run_id), kept=(RunStarted.TOPIC,))
            await log.forget_groups([group for group in await log.groups() if run_of_group(group) in ids])
        now_ms = int(time.time() * 1000)
        over = await finished_states(
            log, ended_before_ms=now_ms + 1, named=ids, now_ms=now_ms, idle_ms=LOST_AFTER_MS
        )
        await forget_states(log, over)

    async def shrink(log: EventLog) -> None:
        if isinstance(log, LocalLog):
            await log.shrink()

    known = place.dropped()
    dropped = [drop_run(place, run_id) for run_id in ids if run_id not in known]
    has_log = place.log != "local" or place.data.log.is_file()
    if ids and has_log:
        place.ask_log(erase)
    for path in place.data.plugins.glob("*.sqlite"):
        with closing(PluginStates(path, "", "")) as states:
            states.forget_runs(ids)
    for run_id in ids:
        for path in (place.data.checkpoints(run_id), *_other_files(place.data, run_id)):
            _delete(path, f"unstable-stream rm {run_id}{place.options}")
    try:
        if has_log:
            place.ask_log(shrink)
    except LogUnavailableError:
        in_use = True
    later = bool(dropped) and is_shared(place.archive)
    return Removed(dropped, before, bytes_in(place.root), in_use, later)


async def run_sizes(log: LocalLog) -> dict[str, int]:
    """Return the bytes of the records of each run, by its id."""
    found: dict[str, int] = {}
    prefix = source_header("").decode()
    for (_, source), (_, size) in (await log.sizes()).items():
        run_id = source.decode().removeprefix(prefix)
        found[run_id] = found.get(run_id, 0) + size
    return found


def bytes_in(path: Path) -> int:
    """Return the bytes of a file, or of all files in a directory; 0: there is none."""
    found = 0
    for file in [f"{at}/{name}" for at, _, names in os.walk(path) for name in names] or [str(path)]:
        with suppress(FileNotFoundError):  # others delete meanwhile
            found += 0 if os.path.isdir(file) else os.lstat(file).st_size
    return found


def _look(place: Place, run: str, is_dropped: bool) -> Droppable:
    if not is_dropped:
        return look_at_run(place, run)
    forks = query(place.archive, "SELECT run_id FROM runs WHERE parent_run_id = ? ORDER BY run_id", [run])
    return Droppable(run, None, 0, 0.0, 0, [row[0] for row in forks.rows], ())


def _delete(path: Path, again: str) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"{error.filename or path} cannot be deleted: {error.strerror}. Make that possible, then: {again}"
        ) from error


def _other_files(data: DataDir, run_id: str) -> list[Path]:
    return [kind(run_id) for kind in (data.service_logs, data.tracking, data.what_if, data.own_code)]


def _players(history: RunHistory, run_id: str) -> set[str]:
    """Return the runs that began from a run, or whose settings name files of it."""
    named = f"/{run_id}/".encode()
    return {
        run.run_id
        for run in history.runs.values()
        if run.run_id != run_id
        and run.began is not None
        and (run.began.parent_run_id == run_id or named in msgspec.json.encode(run.settings))
    }


def _elsewhere(history: RunHistory, run_id: str) -> str | None:
    run = history.runs.get(run_id)
    learner: Any = run.settings.get("learner") if run is not None else None  # recorded, so of any form
    root = learner.get("ckpt_root") if isinstance(learner, dict) else None
    return f"{root}/{run_id}" if root else None
