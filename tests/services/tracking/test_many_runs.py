"""Several runs in one terminal: a row for each; a view in tmux follows the size of its pane."""

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from tests.builders import made
from tests.command_line import PROGRAM
from tests.processes import ROOT
from tests.services.tracking.test_terminal_interface import CONFIG, evaluated
from unstable_stream.events import LearnerUpdate
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.recording import finish_run, start_run
from unstable_stream.runs.run_view import RunView
from unstable_stream.services.tracking.terminal_interface import render_runs, watch_runs

pytestmark = pytest.mark.longer

DEADLINE_S = 60.0


async def begin(log: LocalLog) -> None:
    await log.create_topics(list(load_topics().values()))
    for name in ("run-a", "run-b"):
        await start_run(log, CONFIG, name)


def test_each_run_has_a_row_with_its_newest_results() -> None:
    views = [RunView(f"run-{name}", CONFIG) for name in "ab"]
    views[0].apply(made(LearnerUpdate, run_id="run-a", update=3, metrics={"entropy": 0.25}))
    for number, reward in enumerate((1.0, -1.0, 1.0, 1.0)):
        views[1].apply(evaluated(number, "random-legal", 2, reward, run_id="run-b"))
    console = Console(width=110)
    with console.capture() as shown:
        console.print(render_runs(views))
    first, second = [line for line in shown.get().splitlines() if "run-" in line]
    assert f"3/{CONFIG.learner.iterations}" in first
    assert "0.25" in first
    assert f"0/{CONFIG.learner.iterations}" in second
    assert "at update 2: 75% of 4 vs random-legal" in second
    assert "vs random" not in first


async def test_without_a_terminal_each_run_has_a_line_until_the_last_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await begin(log)
        await finish_run(log, "run-a", "completed", "")
        watching = asyncio.ensure_future(watch_runs(log, {"run-a": CONFIG, "run-b": CONFIG}))
        printed = ""
        async with asyncio.timeout(DEADLINE_S):
            while "run-b [" not in printed:
                await asyncio.sleep(0.01)
                printed += capsys.readouterr().err
            assert "run-a [" in printed
            assert not watching.done(), "one of them has not ended"
            await finish_run(log, "run-b", "stopped", "")
            await watching


# -- in tmux --------------------------------------------------------------------------------------


@dataclass
class Pane:
    """A terminal multiplexer of this test's own."""

    socket: str

    def tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self.socket, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @property
    def lines(self) -> list[str]:
        return self.tmux("capture-pane", "-p").splitlines()

    def until(self, shown: Callable[[list[str]], bool]) -> list[str]:
        end = time.monotonic() + DEADLINE_S
        while not shown(lines := self.lines):
            assert time.monotonic() < end, "\n".join(lines)
            time.sleep(0.1)
        return lines


@pytest.fixture
def pane() -> Iterator[Pane]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: apt-get install tmux")
    found = Pane(f"unstable-stream-{uuid.uuid4().hex}")
    found.tmux("-f", os.devnull, "new-session", "-d", "-x", "120", "-y", "40")
    yield found
    found.tmux("kill-server")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runs", [("run-a",), ("run-a", "run-b")])
def test_the_view_fits_its_terminal_also_after_it_was_resized(
    pane: Pane, tmp_path: Path, runs: tuple[str, ...]
) -> None:
    async def recorded() -> None:
        async with LocalLog.open(DataDir(tmp_path).log, synchronous="NORMAL") as log:
            await begin(log)

    asyncio.run(recorded())
    command = shlex.join([sys.executable, "-c", PROGRAM, "watch", *runs, "--data", str(tmp_path)])
    (tmp_path / "watch.sh").write_text(f"export PYTHONPATH={shlex.quote(str(ROOT))}\nexec {command}\n")
    pane.tmux("send-keys", f"sh {shlex.quote(str(tmp_path / 'watch.sh'))}", "Enter")

    def drawn(width: int) -> Callable[[list[str]], bool]:
        # The newest frame is the last: its border is as wide as the terminal.
        def is_drawn(lines: list[str]) -> bool:
            tops = [line for line in lines if line.startswith("╭")]
            ends = [line for line in lines if line.startswith("╰")]
            return bool(tops and ends) and len(tops[-1]) == len(ends[-1]) == width

        return is_drawn

    pane.until(drawn(120))
    assert all(any(run in line for line in pane.lines) for run in runs)
    for width in (70, 100):
        pane.tmux("resize-window", "-x", str(width), "-y", "40")
        lines = pane.until(drawn(width))
        assert all(len(line) <= width for line in lines)
        assert all(any(run in line for line in lines) for run in runs)
