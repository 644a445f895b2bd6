"""Code that a recorded configuration names is loaded where the operator allowed it, and nowhere else."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

import unstable_stream as us
from tests.reward_transformations.trajectories import RUN
from unstable_stream.api.loops import wait_for
from unstable_stream.errors import ConfigError
from unstable_stream.events import Metrics
from unstable_stream.extensions import (
    ALLOW_CODE,
    KINDS,
    allowed_patterns,
    build,
    confine,
    confined,
    pattern_of,
)
from unstable_stream.history.proofs.play_again import processes
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.code import find_code
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.recording import start_run
from unstable_stream.services.streams.plugins.worker import PluginWorker

FINAL = KINDS["final_transformation"]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A reference to code that leaves a file behind when it is loaded."""
    monkeypatch.delenv(ALLOW_CODE, raising=False)
    ran = tmp_path / "ran"
    path = tmp_path / "a [1], b.py"
    path.write_text(f"open({str(ran)!r}, 'w').close()\ndef f(x, env_id=None): return x\n")
    return f"{path}:f"


def test_a_confined_process_loads_what_is_built_in_and_nothing_else(target: str, tmp_path: Path) -> None:
    with confined(), pytest.raises(ConfigError, match=r"give --allow-code '.*py:f' or set UNSTABLE_STREAM_A"):
        build(FINAL, target)
    assert not (tmp_path / "ran").exists(), "refused before it ran"
    with confined():
        build(FINAL, "WinDrawLossFormatter")
    with confined(["other:*"]), pytest.raises(ConfigError, match="was not allowed"):
        build(FINAL, target)
    for pattern in ("*", "*/a *.py:f"):
        with confined([pattern]):
            build(FINAL, target)


def test_the_pattern_of_a_target_survives_the_environment(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_CODE, "")
    with pytest.raises(ConfigError, match="was not allowed"):
        build(FINAL, target)
    confine([pattern_of(target)])
    build(FINAL, target)
    assert allowed_patterns() == (pattern_of(target),)
    with pytest.raises(ConfigError, match="was not allowed"):
        build(FINAL, "pytest:Item")


async def test_confinement_reaches_threads_and_ends_with_its_block(target: str) -> None:
    with confined(), pytest.raises(ConfigError, match="was not allowed"):
        await asyncio.to_thread(build, FINAL, target)
    build(FINAL, target)
    assert allowed_patterns() is None


async def test_confinement_reaches_the_thread_of_a_call_in_a_notebook_and_processes(target: str) -> None:
    with confined(["mine:*"]):
        with pytest.raises(ConfigError, match="was not allowed"):
            wait_for(asyncio.to_thread(build, FINAL, target))
        with processes(1) as pool:
            assert pool.submit(allowed_patterns).result(timeout=60) == ("mine:*",)


def test_a_call_that_confines_itself_leaves_its_caller_free(target: str, tmp_path: Path) -> None:
    env = {"env_id": "SimpleTak-v0-train", "template": "simpletak-board"}
    settings: dict[str, object] = {"model": "tiny-player", "train_envs": [env]}
    settings["rewards"] = {"final": [target]}

    async def record() -> None:
        async with LocalLog.open(tmp_path / "log.sqlite") as log:
            await log.create_topics(list(load_topics().values()))
            await start_run(log, parse_config(settings), RUN)

    asyncio.run(record())
    run = us.open_run(RUN, tmp_path)
    with pytest.raises(ConfigError, match="was not allowed"):
        run.resumable_config(allow_code=[])
    run.verify(allow_code=[])
    assert ALLOW_CODE not in os.environ
    assert run.resumable_config(allow_code=[pattern_of(target)]).rewards == run.config.rewards
    assert run.resumable_config().rewards == run.config.rewards


async def test_the_thread_of_a_plugin_may_load_what_its_host_may() -> None:
    @us.consumer(topics=["metrics"])
    def quiet(event: Metrics, context: us.Context) -> None:
        pass

    with confined(("mine:Thing",)):
        worker = PluginWorker(quiet, None)
        seen = await worker.do(allowed_patterns)
    await worker.close()
    assert seen is not None
    assert "mine:Thing" in seen


def test_a_recorded_directory_is_searched_only_for_code_that_may_be_loaded(tmp_path: Path) -> None:
    values = {"model": "tiny-player", "train_envs": [{"env_id": "TicTacToe-v0-train"}]}
    config = parse_config({**values, "directory": str(tmp_path), "algorithm": {"type": "not_here:Thing"}})
    with confined(()):
        find_code(config)
        assert str(tmp_path) not in sys.path
    with confined(("not_here:*",)):
        find_code(config)
    assert str(tmp_path) in sys.path
    sys.path.remove(str(tmp_path))
