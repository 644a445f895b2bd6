"""The launcher's own steps."""

import asyncio

import pytest

from unstable_stream.launch.launcher import _end


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
