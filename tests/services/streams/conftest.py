"""Local logs with our topics, for the tests of the hosts."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.log.harness import topics_of_one_partition
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topics import load_topics


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        await opened.create_topics(topics_of_one_partition())
        yield opened


@pytest.fixture
async def declared_log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    """With as many partitions as are declared."""
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        await opened.create_topics(list(load_topics().values()))
        yield opened
