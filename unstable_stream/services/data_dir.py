"""Where a run keeps what it makes on one machine."""

from dataclasses import dataclass
from pathlib import Path

from unstable_stream.config import RunConfig
from unstable_stream.errors import ConfigError
from unstable_stream.eventlog.local import LocalLog
from unstable_stream.eventlog.port import EventLog

__all__ = ["DEFAULT_DATA_DIR", "DataDir", "open_log"]

DEFAULT_DATA_DIR = Path("unstable-data")


@dataclass(frozen=True, slots=True)
class DataDir:
    """The files of all runs that share a directory."""

    root: Path = DEFAULT_DATA_DIR

    @property
    def log(self) -> Path:
        """The event log."""
        return self.root / "log.sqlite"

    @property
    def archive(self) -> Path:
        """The DuckDB file."""
        return self.root / "archive.duckdb"

    def checkpoints(self, run_id: str) -> Path:
        """Directory of a run's checkpoints."""
        return self.root / "checkpoints" / run_id

    def service_logs(self, run_id: str) -> Path:
        """Directory of what a run's processes print."""
        return self.root / "logs" / run_id


def open_log(config: RunConfig, data: DataDir) -> EventLog:
    """Open the event log a run is configured for.

    Raises:
        ConfigError: ``log`` names no known kind of log.
    """
    if config.log == "local":
        data.root.mkdir(parents=True, exist_ok=True)
        return LocalLog.open(data.log, synchronous=config.synchronous)
    raise ConfigError(f"log = {config.log!r}: expected 'local'")
