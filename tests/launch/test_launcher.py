"""The launcher's own steps."""

import asyncio
from pathlib import Path

import pytest

from unstable_stream.errors import ConfigError
from unstable_stream.launch.launcher import _end, launch
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.data_dir import DataDir


async def test_a_view_that_failed_does_not_replace_the_result_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def view() -> None:
        raise BrokenPipeError("the terminal was closed")

    failed, running = asyncio.ensure_future(view()), asyncio.ensure_future(asyncio.Event().wait())
    await asyncio.wait([failed])
    await _end(failed)
    await _end(running)  # type: ignore[arg-type]
    assert running.cancelled()
    assert "the terminal was closed" in capsys.readouterr().err


async def test_modules_that_the_model_lacks_are_named_before_anything_is_written(tmp_path: Path) -> None:
    config = parse_config(
        {
            "model": "tiny-player",
            "train_envs": [{"env_id": "TicTacToe-v0-train"}],
            "lora": {"target_modules": ["q_proj", "c_attn"]},
        }
    )
    with pytest.raises(ConfigError, match=r"lora\.target_modules names c_attn, .*its layers are down_proj, "):
        await launch(config, DataDir(tmp_path))
    assert list(tmp_path.iterdir()) == []
