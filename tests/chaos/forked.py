"""Launchers forked from a process that has imported all that they need: a kill costs no import of torch."""

import asyncio
import contextlib
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, cast

from tests.whole_run.processes import History, LaunchedRun, environment
from unstable_stream.ui.cli import main

_THAT_IS_ALL = "=== these are all tasks"
_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")
_ANSWER_S = 20.0

_PRELOADED = [
    "pandas",  # DuckDB asks whether it is there
    "tests.chaos.forked",
    "textarena",
    "textarena.envs.SimpleTak.env",
    "transformers.models.qwen3.modeling_qwen3",
    "unstable_stream.api.build",
    "unstable_stream.api.launching",
    "unstable_stream.archive",
    "unstable_stream.ui.cli.prove",
    "unstable_stream.ui.cli.train",
    "unstable_stream.inference.openai",
    "unstable_stream.inference.transformers.engine",
    "unstable_stream.services.launch.inline",
    "unstable_stream.services.launch.launcher",
    "unstable_stream.log.kafka.log",
    "unstable_stream.history.proofs.verify",
    "unstable_stream.services.streams.plugins.host",
    "unstable_stream.inference.tiny_player",
    "unstable_stream.services.tracking.terminal_interface",
    "unstable_stream.services.workers.archiver",
    "unstable_stream.services.workers.learner",
]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_PRELOADED)


def _launch(arguments: Sequence[str], output: Sequence[str], environ: dict[str, str]) -> None:
    for number, name in zip((1, 2), output, strict=True):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, _print_tasks)
    faulthandler.register(signal.SIGUSR1, chain=True)  # also where no Python code runs any more
    sys.argv[:] = ["unstable-stream", *arguments]
    main()


def _print_tasks(number: int, frame: object) -> None:
    """Print where each task of the event loop waits, down to what it awaits last."""
    with contextlib.suppress(RuntimeError):  # there may be no loop yet
        for task in asyncio.all_tasks(asyncio.get_running_loop()):
            print(f"\n--- {task.get_name()}", *_frames(task.get_coro()), sep="\n", file=sys.stderr)
    print(_THAT_IS_ALL, file=sys.stderr, flush=True)


def _frames(waiting: Any) -> Iterator[str]:
    while waiting is not None:
        frame = next((found for name in _FRAMES if (found := getattr(waiting, name, None))), None)
        if frame is None:
            yield f"    {waiting!r}"
            return
        told = {name: repr(value)[:200] for name, value in frame.f_locals.items()}
        yield f"    {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name} {told}"
        waiting = next((found for name in _AWAITED if (found := getattr(waiting, name, None))), None)


class _Forked:
    """A process with what a test uses of ``subprocess.Popen``."""

    def __init__(self, process: ForkServerProcess) -> None:
        process.start()
        assert process.pid is not None
        self.pid: int = process.pid
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode


class ForkedRun(LaunchedRun):
    """``unstable-stream train``, forked."""

    def _start(self) -> "subprocess.Popen[bytes]":
        return cast("subprocess.Popen[bytes]", self._fork(self.arguments, self.stdout, self.stderr))

    def _fork(self, arguments: Sequence[str], *output: Path) -> _Forked:
        given = (list(arguments), [str(path) for path in output], environment(self.log))
        return _Forked(_context.Process(target=_launch, args=given))

    async def until(self, what: str, condition: Callable[[History], bool]) -> None:
        """As for any run; one that stands still first tells where, at the end of ``stderr.txt``."""
        try:
            await super().until(what, condition)
        except AssertionError as error:
            if self.popen.poll() is None:
                await self._tell_where_it_stands()
                error.add_note(f"where it stood is at the end of {self.stderr.name}")
            raise

    async def _tell_where_it_stands(self) -> None:
        deadline = time.monotonic() + _ANSWER_S
        self.popen.send_signal(signal.SIGUSR1)
        while not self.stderr.read_text().rstrip().endswith(_THAT_IS_ALL) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    async def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another command, forked, on the same data directory and log."""
        output = [self.data / f"{arguments[0]}-{name}.txt" for name in ("stdout", "stderr")]
        for path in output:
            path.unlink(missing_ok=True)
        status = await asyncio.to_thread(self._fork([*arguments, "--data", str(self.data)], *output).wait)
        said = [path.read_text() for path in output]
        return subprocess.CompletedProcess(arguments, status if status is not None else 1, *said)
