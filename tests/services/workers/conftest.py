"""A local log with the declared topics."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(DataDir(tmp_path).log, synchronous="NORMAL") as opened:
        await opened.create_topics(list(load_topics().values()))
        yield opened
