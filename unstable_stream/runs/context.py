"""A run, as its services get it: id, configuration and data directory travel together."""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir


class RunContext(NamedTuple):
    """A run whose services are started."""

    run_id: str
    config: RunConfig
    data: DataDir

    def opened_log(self) -> AbstractAsyncContextManager[EventLog]:
        """Open the run's log, and close it at the end."""
        return opened_log(self.config.log, self.data.log, synchronous=self.config.synchronous)
