"""Copy a data directory while runs write to it: one moment of the log, with all that goes with it."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.errors import RunError
from unstable_stream.events import Checkpoint
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.stores.address import is_address
from unstable_stream.runs.data_dir import DataDir


@dataclass(frozen=True)
class Backup:
    """The content of a backup."""

    path: Path
    log_bytes: int
    archive_bytes: int
    """0: there is no archive."""
    checkpoints: int
    elsewhere: int
    """Checkpoints in a store, or in another directory than this one: they are not in the backup."""
    missing: tuple[str, ...]
    """Checkpoints that the log names and that are not there."""


def back_up(data: Path | str | None, target: Path | str) -> Backup:
    """Copy the local log, the archive, the files that the copied log names, and states of plug-ins.

    The parts are copied in this order:

    1. the archive, while its write lock is held: it may be behind the log, never ahead of it;
    2. the states of plug-ins, then the log, each as of one moment, by SQLite's online backup;
    3. checkpoints: never changed once they are published, so they are linked, or copied to another disk. An
       event may name any path: a checkpoint is taken from the data directory and nowhere else.

    Args:
        data: the data directory; by default ``unstable-data``.
        target: a directory that does not exist yet. It appears when all is in it.

    Raises:
        ConfigError: ``target`` cannot be a data directory.
        EventLogError: there is no log.
        RunError: ``target`` exists, or the disk is full.
        ArchiveBusyError: somebody held the archive for a minute.
    """
    from unstable_stream.archive.store import copy_archive

    place, target = Place.at(data), Path(target).absolute()
    whole = DataDir(target)
    if target.exists():
        raise RunError(f"{target} exists: name a directory that does not, a backup never replaces anything")

    async def named(log: Path) -> set[str]:
        async with LocalLog.open(log) as copied:
            events = [event async for _, event in events_to_end(copied, [Checkpoint.TOPIC])]
            return {event.path for event in events if isinstance(event, Checkpoint) and event.path}

    async def exists() -> None:
        async with place.opened_log():
            return

    wait_for(exists())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            copied = DataDir(partial)
            if place.data.archive_file.is_file():
                copy_archive(place.data.archive_file, copied.archive_file)
            # Like the archive, the states of plug-ins may be behind the log, and never ahead of it.
            for file in [*sorted(place.data.root.glob("plugins/*.sqlite")), place.data.log]:
                _copy_database(file, partial / file.relative_to(place.data.root))
            if (code := place.data.root / "code").is_dir():
                shutil.copytree(code, partial / "code")
            homes = {path: place.data.own_checkpoint(path) for path in sorted(wait_for(named(copied.log)))}
            others = [path for path, home in homes.items() if home is None]
            missing = [path for path in others if not is_address(path) and not os.path.isdir(path)]
            # Two paths may name one checkpoint, if the data directory was moved between.
            linked = {Path(*home.parts[-2:]): home for home in homes.values() if home is not None}
            for name, home in linked.items():
                copy = partial / "checkpoints" / name
                shutil.copytree(home, copy, symlinks=True, copy_function=_link_or_copy)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, sqlite3.Error) as error:
        raise RunError(f"could not write the backup to {target}: {error}; nothing is left there") from error
    return Backup(
        target,
        whole.log.stat().st_size,
        whole.archive_file.stat().st_size if whole.archive_file.is_file() else 0,
        len(linked),
        len(others) - len(missing),
        tuple(missing),
    )


def _copy_database(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        # In one step: in several, every record that is appended meanwhile would make it begin again.
        live.backup(copy, pages=-1)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        return  # an optimizer state that has just been pruned
    except OSError:
        shutil.copy2(source, target)  # another disk
