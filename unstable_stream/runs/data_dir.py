"""The layout of a data directory, which holds the files of the runs of one machine."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from unstable_stream.archive_address import ArchiveAddress, chosen_archive
from unstable_stream.stores.address import is_address, name_of, owner_of

__all__ = ["DEFAULT_DATA_DIR", "DataDir"]

DEFAULT_DATA_DIR = Path("unstable-data")
"""The default directory."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """The files of all runs that share a directory."""

    root: Path = DEFAULT_DATA_DIR

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
        """The archive: the DuckDB file, or the shared archive that the environment names."""
        return chosen_archive(self.archive_file)

    def checkpoints(self, run_id: str) -> Path:
        """Directory of a run's checkpoints."""
        return self.root / "checkpoints" / run_id

    def located(self, checkpoint: str) -> str:
        """Return where a checkpoint is that an event names: here under its run and name, if it is here.

        Events name it with the directory of the day. A data directory that was moved, or put back elsewhere
        from a backup, must not use the files of another one.
        """
        if is_address(checkpoint):
            return checkpoint
        here = self.root / "checkpoints" / owner_of(checkpoint) / name_of(checkpoint)
        return str(here.absolute()) if here.is_dir() else checkpoint

    def service_logs(self, run_id: str) -> Path:
        """Directory of the output of a run's processes."""
        return self.root / "logs" / run_id

    def tracking(self, run_id: str) -> Path:
        """Directory of the files that trackers write about a run."""
        return self.root / "tracking" / run_id

    def own_code(self, run_id: str) -> Path:
        """File with the code names of a run started here; see :mod:`unstable_stream.runs.code`."""
        return self.root / "code" / f"{run_id}.json"

    def options(self, log: str = "local") -> str:
        """Options that lead a command to this directory and ``log``, each after a space; none by default."""
        options = (("--data", self.root, DEFAULT_DATA_DIR), ("--log", log, "local"))
        return "".join(
            f" {name} {shlex.quote(str(value))}" for name, value, usual in options if value != usual
        )
