"""``unstable-stream processors`` as a user meets it: ready, at work, stopped; mistakes in one line."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import PROGRAM, run_command
from tests.reward_transformations.trajectories import RUN
from tests.services.streams.hosted_games import OTHER_RUN, events, games
from unstable_stream.errors import ConfigError
from unstable_stream.extensions import ALLOW_CODE
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topics import load_topics
from unstable_stream.reward_transformations import StepRewardTransform
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.recording import start_run

pytestmark = pytest.mark.longer

SETTINGS = {"model": "tiny-player", "train_envs": [{"env_id": "Env-0"}]}


async def _play(data: Path, **sections: object) -> None:
    async with LocalLog.open(data / "log.sqlite") as log:
        await log.create_topics(list(load_topics().values()))
        for run_id in (RUN, OTHER_RUN):
            await start_run(log, parse_config(SETTINGS | sections), run_id)
        await log.append(games(0, 8))


@pytest.mark.parametrize(("run", "number"), [(None, signal.SIGTERM), (RUN, signal.SIGINT)])
async def test_it_serves_until_it_is_stopped(tmp_path: Path, run: str | None, number: signal.Signals) -> None:
    await _play(tmp_path)
    only, wanted = ([], {RUN, OTHER_RUN}) if run is None else (["--run", run], {run})
    command = [sys.executable, "-c", PROGRAM, "processors", "--data", str(tmp_path), *only]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            said = (await process.stdout.readline()).decode()
            whose = "all runs" if run is None else f"run {RUN}"
            assert said == f"processors ready: {whose}, generic runtime, log local\n"
            async with LocalLog.open(tmp_path / "log.sqlite") as log:
                await log.append(games(8, 4))
                while {event.run_id for event in await events(log, "steps")} != wanted:
                    await asyncio.sleep(0.05)
                process.send_signal(number)
                rest, errors = await process.communicate()
                assert (process.returncode, rest) == (0, b""), errors
                assert b"Traceback" not in errors
    finally:
        if process.returncode is None:
            process.kill()


class Breaks(StepRewardTransform):
    """A transformation with a bug."""

    def __call__(self, *_: object) -> float:
        raise ZeroDivisionError("a bug")


def test_a_bug_in_a_fold_stops_it_loudly(tmp_path: Path) -> None:
    asyncio.run(_play(tmp_path, rewards={"step": [{"type": f"{__name__}:Breaks"}]}))
    refused = run_command("processors", "--data", ".", "--run", RUN, cwd=tmp_path)
    doomed = run_command("processors", "--data", ".", "--run", RUN, cwd=tmp_path, **{ALLOW_CODE: "*"})
    for done, said in ((refused, "this process was not allowed"), (doomed, "ZeroDivisionError: a bug")):
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_faust_on_the_local_log_is_known_before_a_run_starts() -> None:
    with pytest.raises(
        ConfigError, match=r'processors\.runtime="faust" needs a Kafka log, found log="local"'
    ):
        parse_config(SETTINGS | {"processors": {"runtime": "faust"}})
    settings = SETTINGS | {"log": "kafka://h:9092", "processors": {"runtime": "faust"}}
    assert parse_config(settings).processors.runtime == "faust"
