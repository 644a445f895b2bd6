"""Copy a data directory while runs write to it: one moment of the log, with all that goes with it."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from unstable_stream.api.loops import wait_for
from unstable_stream.api.place import Place
from unstable_stream.errors import ConfigError, RunError
from unstable_stream.events import Checkpoint, RunResumed, RunStarted, is_checkpoint_uid
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import events_to_end
from unstable_stream.log.stores import is_address, path_part
from unstable_stream.runs.data_dir import DataDir


@dataclass(frozen=True)
class Backup:
    """The content of a backup."""

    path: Path
    log_bytes: int
    archive_bytes: int
    """0: there is no archive."""
    checkpoints: int
    missing: tuple[str, ...]
    """Checkpoints that the log names and that are not there."""
    left_out: tuple[str, ...] = ()
    """Directories that checkpoint events name and that are not those of checkpoints of their run."""
    stored: int = 0
    """Checkpoints that are in a store, which keeps its own copies: they are not in the backup."""


def back_up(data: Path | str | None, target: Path | str) -> Backup:
    """Copy the local log, the archive, the files that the copied log names, and states of plug-ins.

    The parts are copied in this order:

    1. the archive, while its write lock is held: it may be behind the log, never ahead of it;
    2. the states of plug-ins, then the log, each as of one moment, by SQLite's online backup;
    3. checkpoints: never changed once they are published, so they are linked, or copied to another disk. An
       event may name any path: a checkpoint is taken from the data directory, or from the
       ``learner.ckpt_root`` that its run was recorded with, and nowhere else.

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

    async def named(log: Path) -> tuple[set[str], dict[str, set[str]]]:
        paths: set[str] = set()
        roots: dict[str, set[str]] = {}
        async with LocalLog.open(log) as copied:
            async for _, event in events_to_end(copied, [Checkpoint.TOPIC, RunStarted.TOPIC]):
                if isinstance(event, Checkpoint) and event.path is not None:
                    paths.add(event.path)
                elif isinstance(event, RunStarted | RunResumed):
                    learner = event.config.get("learner")
                    root = learner.get("ckpt_root") if isinstance(learner, dict) else None
                    roots.setdefault(event.run_id, set()).add(str(root))
            return paths, roots

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
            named_paths, roots = wait_for(named(copied.log))
            paths = sorted(path for path in named_paths if not is_address(path))
            homes = {path: _checkpoint_at(path, place.data, roots) for path in paths}
            missing = [path for path, home in homes.items() if home is None and not os.path.isdir(path)]
            left_out = [path for path, home in homes.items() if home is None and path not in missing]
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
        tuple(missing),
        tuple(left_out),
        len(named_paths) - len(paths),
    )


def _copy_database(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        # In one step: in several, every record that is appended meanwhile would make it begin again.
        live.backup(copy, pages=-1)


def _checkpoint_at(path: str, data: DataDir, roots: Mapping[str, Collection[str]]) -> Path | None:
    """Return the directory of a checkpoint; ``None``: it is not there, or in no directory of its run's.

    Args:
        path: what its event says.
        data: where it is looked for first: it may have been moved.
        roots: by run, each ``learner.ckpt_root`` that it was recorded with.
    """
    own = data.own_checkpoint(path)
    if own is not None or not os.path.isdir(path):
        return own
    named = Path(path)
    root, run_id = named.parent.parent, named.parent.name
    if str(root) not in roots.get(run_id, ()) or not is_checkpoint_uid(named.name.rpartition("-")[0]):
        return None
    try:
        inside = root.resolve() / path_part(run_id, "run id") / named.name
    except ConfigError:
        return None
    return named if named.resolve() == inside else None


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        return  # an optimizer state that has just been pruned
    except OSError:
        shutil.copy2(source, target)  # another disk
