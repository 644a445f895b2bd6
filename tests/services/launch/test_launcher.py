"""The launcher's own steps."""

import asyncio
from pathlib import Path

import pytest
import structlog

from tests.services.workers.test_game_schedule import config
from unstable_stream.errors import ConfigError, ServiceError
from unstable_stream.log.local.log import LocalLog
from unstable_stream.runs.context import RunContext
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import Machine, Placement, Share
from unstable_stream.services.launch.inline import InlineServices
from unstable_stream.services.launch.launcher import _end, launch


async def test_a_view_that_failed_does_not_replace_the_result_of_the_run() -> None:
    async def view() -> None:
        raise BrokenPipeError("the terminal was closed")

    failed, running = asyncio.ensure_future(view()), asyncio.ensure_future(asyncio.Event().wait())
    await asyncio.wait([failed])
    # Captured whatever an earlier test of the process made of structlog's configuration.
    with structlog.testing.capture_logs() as said:
        await _end(failed)
        await _end(running)  # type: ignore[arg-type]
    assert running.cancelled()
    assert [line["error"] for line in said] == ["BrokenPipeError: the terminal was closed"]


async def test_a_service_that_failed_is_noticed_where_nothing_can_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standard error of a run is often a file on the disk that is full."""

    async def fail(self: InlineServices, name: str, stop: asyncio.Event) -> None:
        raise ServiceError(f"{name}: no space left")

    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(InlineServices, "_serve", fail)
    monkeypatch.setattr("unstable_stream.services.launch.inline._logger.error", no_space, raising=False)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # of the callback's own failure
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        placement = Placement(Share("learner"), (Share("engine 0"),), (Machine(),))
        run = RunContext("run-test", config(), DataDir(tmp_path))
        services = InlineServices(log, run, "model", placement)
        services.start("collector")
        async with asyncio.timeout(60):
            with pytest.raises(ServiceError, match="collector: no space left"):
                await services.wait(["collector"])
        await services.close()


async def test_without_its_ray_cluster_a_run_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ServiceError, match="no Ray cluster answers at RAY_ADDRESS=127"):
        await launch(config(), DataDir(tmp_path / "data"))
    assert not (tmp_path / "data").exists()


async def test_what_the_model_cannot_do_is_named_before_anything_is_written(tmp_path: Path) -> None:
    said = r"lora\.target_modules names c_attn, .*its layers down_proj, "
    with pytest.raises(ConfigError, match=said):
        await launch(config(lora={"target_modules": ["q_proj", "c_attn"]}), DataDir(tmp_path))
    assert list(tmp_path.iterdir()) == []
