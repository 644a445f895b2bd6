"""A processor whose log lost records that it had processed stops, and says what to restore."""

import asyncio
import re
from pathlib import Path

import pytest

from tests.log.harness import topics_of_one_partition
from tests.log.lost_end import lose_end
from tests.reward_transformations.trajectories import RUN
from tests.streams.doomed_host import RATINGS
from tests.streams.hosted_games import games
from unstable_stream.errors import OffsetOutOfRangeError
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.streams.fold_sink import FoldSink, group_of
from unstable_stream.streams.processors import host_processors
from unstable_stream.streams.run_configs import RunDirectory


async def _drain(log: EventLog, run_id: str | None) -> None:
    stop = asyncio.Event()
    stop.set()
    async with RunDirectory(log) as runs:
        await host_processors([FoldSink(log, RATINGS, runs, run_id)], stop=stop)


@pytest.mark.parametrize("run_id", [RUN, None])
async def test_a_processor_whose_log_is_shorter_than_its_position_stops_and_changes_nothing(
    tmp_path: Path, run_id: str | None
) -> None:
    path, group = tmp_path / "log.sqlite", group_of(RATINGS.name, run_id)
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics(topics_of_one_partition())
        config = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}
        await start_run(log, parse_config(config), RUN)
        await log.append(games(0, 20))
        await _drain(log, run_id)
        ((at, reached),) = (await log.committed_positions(group)).items()
    lose_end(path, at, reached - 5)
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        named = re.escape(f"{at}@{reached} is out of range: this log has offsets 0 up to (not including)")
        with pytest.raises(OffsetOutOfRangeError, match=f"{named}.*Restore a copy of the log"):
            await _drain(log, run_id)
        assert await log.committed_positions(group) == {at: reached}
