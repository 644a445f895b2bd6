"""Where a run keeps what it makes on one machine."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unstable_stream.errors import ConfigError, EventLogError
from unstable_stream.log.kafka.location import SCHEME
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.runs.config import RunConfig

__all__ = ["DEFAULT_DATA_DIR", "DataDir", "check_log", "open_existing_log", "open_log", "open_log_at"]

DEFAULT_DATA_DIR = Path("unstable-data")
_IMPATIENT_S = 5.0  # somebody waits for the answer, where a service would wait for its brokers


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

    def options(self, log: str = "local") -> str:
        """Options that lead a command to this directory and ``log``, each after a space; none by default."""
        options = (("--data", self.root, DEFAULT_DATA_DIR), ("--log", log, "local"))
        return "".join(
            f" {name} {shlex.quote(str(value))}" for name, value, usual in options if value != usual
        )


def open_log(config: RunConfig, data: DataDir) -> EventLog:
    """Open the event log a run is configured for; see :func:`open_log_at`."""
    return open_log_at(config.log, data, config.synchronous)


def open_existing_log(location: str, data: DataDir) -> EventLog:
    """Open a log to look at what is there; see :func:`open_log_at`.

    Raises:
        EventLogError: ``local``, and the data directory has no event log.
    """
    if location == "local" and not data.log.is_file():
        raise EventLogError(
            f"no event log at {data.log}: start a run first, name its directory with --data, or its log "
            "with --log"
        )
    return open_log_at(location, data, connect_timeout_s=_IMPATIENT_S)


async def check_log(location: str, data: DataDir) -> None:
    """Raise what is wrong with a log that others will open, such as :class:`LogUnavailableError`, early."""
    log = open_log_at(location, data, connect_timeout_s=_IMPATIENT_S)
    try:
        await log.topics()
    finally:
        await log.close()


def open_log_at(
    location: str,
    data: DataDir,
    synchronous: Literal["FULL", "NORMAL"] = "NORMAL",
    *,
    connect_timeout_s: float = 15.0,
) -> EventLog:
    """Open the event log at ``location``.

    ``local`` is the file in the data directory, made if need be; ``kafka://host:9092`` a Kafka cluster, to
    which nothing is sent yet.

    Raises:
        ConfigError: the location names no known kind of log or is malformed, the data directory cannot be
            made, or what Kafka needs is not installed.
    """
    if location.startswith(SCHEME):
        try:
            from unstable_stream.log.kafka.log import KafkaLog
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"a log on Kafka needs {error.name}: install it with pip install 'unstable_stream[kafka]'"
            ) from error
        return KafkaLog.open(location, connect_timeout_s=connect_timeout_s)
    if location == "local":
        try:
            data.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot make the data directory {data.root}: {error.strerror}; name another with --data"
            ) from error
        return LocalLog.open(data.log, synchronous=synchronous)
    raise ConfigError("log: expected 'local' or 'kafka://host:9092'")
