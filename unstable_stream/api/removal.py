"""Remove runs for good: records in log and archive, checkpoints, other files; look first what that frees."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from unstable_stream.api.dropping import Droppable, DroppedFromArchive, drop_run, look_at_run
from unstable_stream.api.place import Place
from unstable_stream.api.topics import prune_states
from unstable_stream.errors import LogUnavailableError, RunError
from unstable_stream.events import RunStarted
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import source_header
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.history import RunHistory, read_history
from unstable_stream.runs.life import LOST_AFTER_MS

_IDLE_DAYS: Final = LOST_AFTER_MS / 86_400_000


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

    dropped: Sequence[DroppedFromArchive]
    bytes_before: int
    """Of the data directory, as for the next."""
    bytes_after: int
    log_in_use: bool
    """Whether the log's file keeps its size, since another process uses it: the space is used again."""


def look_at_runs(place: Place, runs: Sequence[str]) -> list[Removable]:
    """Return what removing runs would free; change nothing.

    Raises:
        RunError: no such run, it is not over, or other runs need it, which are named.
        ArchiveError, ArchiveBusyError: see :func:`~unstable_stream.api.dropping.look_at_run`.
    """
    found = {run.run_id: run for run in (look_at_run(place, run) for run in runs)}
    dropped = place.dropped()

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
    """Remove runs that :func:`look_at_runs` returned. Killed meanwhile, the same call goes on.

    1. Forget what stream processors have saved of them.
    2. Erase their records in a local log, but those on topic ``runs``, by which a run keeps its number.
    3. Delete their checkpoints and other files in the data directory.
    4. Drop them from the archive, which remembers that they were dropped.
    5. Make the log's file smaller, unless another process uses it.

    Raises:
        See :func:`look_at_runs`.
    """
    ids = [run.run.run_id for run in runs]
    before, in_use = bytes_in(place.root), False

    async def erase(log: EventLog) -> set[str]:
        if isinstance(log, LocalLog):
            for run_id in ids:
                await log.erase(source_header(run_id), kept=(RunStarted.TOPIC,))
        return set((await read_history(log)).runs)

    async def shrink(log: EventLog) -> None:
        if isinstance(log, LocalLog):
            await log.shrink()

    has_log = place.log != "local" or place.data.log.is_file()
    if has_log:
        known = place.ask_log(erase)
        if here := [run_id for run_id in ids if run_id in known]:
            prune_states(place, here, idle_days=_IDLE_DAYS)
    for run_id in ids:
        for path in (place.data.checkpoints(run_id), *_other_files(place.data, run_id)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    dropped = [drop_run(place, run_id) for run_id in ids]
    try:
        if has_log:
            place.ask_log(shrink)
    except LogUnavailableError:
        in_use = True
    return Removed(dropped, before, bytes_in(place.root), in_use)


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
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.lstat().st_size for file in files if file.is_file())


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
