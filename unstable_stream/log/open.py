"""Open the event log that a location names. Only this module chooses between the adapters.

A location is ``local``, the file that the caller names, or ``kafka://host:9092``, a Kafka cluster.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

from unstable_stream.errors import ConfigError, EventLogError
from unstable_stream.log.kafka.location import SCHEME
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog

_IMPATIENT_S = 5.0  # a person waits for the answer
_PATIENT_S = 15.0  # a service waits for its brokers


@contextlib.asynccontextmanager
async def opened_log(
    location: str, file: Path, *, synchronous: Literal["FULL", "NORMAL"] = "FULL", existing: bool = False
) -> AsyncIterator[EventLog]:
    """Open a log for the duration of an ``async with`` block.

    Args:
        location: ``local`` or ``kafka://host:9092``.
        file: where a local log is.
        synchronous: how a local log is written; see :meth:`LocalLog.open`.
        existing: the log must already exist, and its brokers must answer within seconds.

    Raises:
        ConfigError: see :func:`open_log_at`.
        EventLogError: ``existing``, the location is ``local``, and the file does not exist.
    """
    if existing and location == "local" and not file.is_file():
        raise EventLogError(
            f"no event log at {file}: start a run first, name its directory with --data, or its log with "
            "--log"
        )
    log = open_log_at(location, file, synchronous, impatient=existing)
    try:
        yield log
    finally:
        await log.close()


async def check_log(location: str, file: Path) -> None:
    """Check a log that other processes will open; raises e.g. :class:`LogUnavailableError`."""
    log = open_log_at(location, file, impatient=True)
    try:
        await log.topics()
    finally:
        await log.close()


def open_log_at(
    location: str, file: Path, synchronous: Literal["FULL", "NORMAL"] = "FULL", *, impatient: bool = False
) -> EventLog:
    """Open a log; the caller closes it.

    A missing local file and its directory are made. Nothing is sent to a Kafka cluster yet.

    Args:
        location: ``local`` or ``kafka://host:9092``.
        file: where a local log is: in the data directory.
        synchronous: how a local log is written; see :meth:`LocalLog.open`.
        impatient: whether the brokers of a Kafka cluster must answer within seconds.

    Raises:
        ConfigError: the location names no known kind of log or is malformed, the directory of the file cannot
            be made, or the packages for Kafka are not installed.
    """
    if location.startswith(SCHEME):
        try:
            from unstable_stream.log.kafka.log import KafkaLog
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"a log on Kafka needs {error.name}: install it with pip install 'unstable_stream[kafka]'"
            ) from error
        return KafkaLog.open(location, connect_timeout_s=_IMPATIENT_S if impatient else _PATIENT_S)
    if location == "local":
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot make the data directory {file.parent}: {error.strerror}; name another with --data"
            ) from error
        return LocalLog.open(file, synchronous=synchronous)
    raise ConfigError("log: expected 'local' or 'kafka://host:9092'")
