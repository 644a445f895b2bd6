"""The layout of a data directory, which holds the files of the runs of one machine."""

import os
import shlex
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unstable_stream.errors import ArchiveError, ConfigError
from unstable_stream.log.stores.address import (
    LONGEST_NAME,
    checked_address,
    is_address,
    name_of,
    owner_of,
    path_part,
)
from unstable_stream.log.stores.archive_address import ArchiveAddress, chosen_archive, is_export

DEFAULT_DATA_DIR = Path("unstable-data")
"""The default directory."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """The files of all runs that share a directory. None is outside of it, whatever id a record has.

    An id that cannot be part of a file name is refused with :class:`~unstable_stream.errors.ConfigError`.
    """

    root: Path = DEFAULT_DATA_DIR

    def __post_init__(self) -> None:
        """Refuse a path that DuckDB takes for another one, before anything is written.

        Raises:
            ConfigError: the absolute path has a ``?``, a ``\\`` or a null in it, or is no UTF-8.
        """
        path = str(self.root.absolute())
        # DuckDB takes what follows "?" for parameters, and "\" for "/".
        if set(path) & set("?\\\0") or path.encode(errors="replace").decode() != path:
            raise ConfigError(
                f"data directory {path!r}: expected a path in UTF-8 without ? and \\, for the archive's "
                "database opens another file then; name another directory with --data (data=…)"
            )

    @property
    def log(self) -> Path:
        """The event log."""
        return self.root / "log.sqlite"

    @property
    def archive_file(self) -> Path:
        """The DuckDB file of this directory."""
        return self.root / "archive.duckdb"

    @property
    def archive(self) -> ArchiveAddress:
        """The archive: the DuckDB file, or the shared archive that the environment names.

        A directory that a run was exported to is an archive itself.
        """
        return self.root if self.is_export else chosen_archive(self.archive_file)

    @property
    def is_export(self) -> bool:
        """Whether it is the directory of an export, and no run was ever started in it."""
        return is_export(self.root) and not (self.archive_file.exists() or self.log.exists())

    def refuse_export(self) -> None:
        """Raise :class:`ArchiveError` if it is an export: no log is made in it."""
        if self.is_export:
            raise ArchiveError(
                f"{self.root} is an export, which is only read: name another data directory with --data"
            )

    def checkpoints(self, run_id: str) -> Path:
        """Directory of a run's checkpoints."""
        return self._of_run("checkpoints", run_id)

    def _of_run(self, kind: str, run_id: str, suffix: str = "") -> Path:
        return self.root / kind / f"{path_part(run_id, 'run id')}{suffix}"

    def own_checkpoint(self, checkpoint: str) -> Path | None:
        """Return the directory in this one of a checkpoint that an event names, by its run and name, or
        ``None``.
        """
        try:
            here = self.checkpoints(owner_of(checkpoint)) / path_part(name_of(checkpoint), "checkpoint")
        except ConfigError:
            return None
        inside = here.resolve().is_relative_to((self.root / "checkpoints").resolve())
        return here if inside and here.is_dir() else None

    def located(self, checkpoint: str) -> str:
        """Return where a checkpoint is that an event names: here under its run and name, if it is here.

        Events name it with the directory of the day. A data directory that was moved, or put back elsewhere
        from a backup, must not use the files of another one.

        Raises:
            ConfigError: what the event names is no path and no address of a store.
        """
        checked_address(checkpoint, "checkpoint")
        here = None if is_address(checkpoint) else self.own_checkpoint(checkpoint)
        return checkpoint if here is None else str(here.absolute())

    @property
    def plugins(self) -> Path:
        """Directory of the states of plug-ins, a file for each."""
        return self.root / "plugins"

    def service_logs(self, run_id: str) -> Path:
        """Directory of the output of a run's processes."""
        return self._of_run("logs", run_id)

    def tracking(self, run_id: str) -> Path:
        """Directory of the files that trackers write about a run."""
        return self._of_run("tracking", run_id)

    def what_if(self, run_id: str) -> Path:
        """Directory of the ratings and rewards that other settings would have given a run."""
        return self._of_run("what-if", run_id)

    def own_code(self, run_id: str) -> Path:
        """File with the code names of a run started here; see :mod:`unstable_stream.runs.code`."""
        return self._of_run("code", run_id, ".json")

    def verdicts(self, env_id: str) -> Path:
        """Directory of what ``check-env`` said of an environment, a file for each version of its code."""
        return self.root / "verdicts" / quote(env_id, safe="")[-LONGEST_NAME:]

    def sweep_lock(self, sweep: str) -> Path:
        """File that is locked by whoever runs the sweep of this name."""
        return self._of_run("sweeps", sweep, ".lock")

    def options(self, log: str = "local") -> str:
        """Options that lead a command to this directory and ``log``, each after a space; none by default."""
        options = (("--data", self.root, DEFAULT_DATA_DIR), ("--log", log, "local"))
        return "".join(
            f" {name} {shlex.quote(str(value))}" for name, value, usual in options if value != usual
        )


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file that others read at any time, also while several processes write it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside it first: a full disk or a kill must not leave half a file, which every later start reads.
        staging = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}")
        staging.write_bytes(content)
        staging.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def check_writable(folder: Path) -> None:
    """Make sure that files can be written in a directory, or that it can be made; nothing is left there.

    Raises:
        ConfigError: they cannot.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot write {path}: {error.strerror or error}; name a data directory that can be written "
        "with --data"
    )
