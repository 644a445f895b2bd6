"""A log to work on, local or on the real Kafka."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unstable_stream.eventlog.port import EventLog
from unstable_stream.services.data_dir import DataDir, open_log_at


@pytest.fixture(params=["local", "kafka"])
def location(request: pytest.FixtureRequest) -> str:
    """``--log`` of each kind of log in turn. A Kafka is shared with other tests: use names of your own."""
    if request.param == "local":
        return "local"
    bootstrap: str = request.getfixturevalue("kafka_bootstrap")
    return f"kafka://{bootstrap}"


@pytest.fixture
async def any_log(location: str, tmp_path: Path) -> AsyncIterator[EventLog]:
    """The log there."""
    log = open_log_at(location, DataDir(tmp_path))
    try:
        yield log
    finally:
        await log.close()
