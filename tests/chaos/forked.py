"""Launchers forked from a process that has imported all that they need: a kill costs no import of torch."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import cast

from tests.whole_run.processes import LaunchedRun, environment
from unstable_stream.cli import main

__all__ = ["ForkedRun"]

_PRELOADED = [
    "pandas",  # DuckDB asks whether it is there
    "tests.chaos.forked",
    "textarena",
    "textarena.envs.SimpleTak.env",
    "transformers.models.qwen3.modeling_qwen3",
    "unstable_stream.api.build",
    "unstable_stream.api.launching",
    "unstable_stream.archive",
    "unstable_stream.cli.audit",
    "unstable_stream.cli.train",
    "unstable_stream.cli.verify",
    "unstable_stream.inference.openai",
    "unstable_stream.inference.transformers.engine",
    "unstable_stream.launch.inline",
    "unstable_stream.launch.launcher",
    "unstable_stream.log.kafka.log",
    "unstable_stream.proofs.audit",
    "unstable_stream.proofs.verify",
    "unstable_stream.streams.plugins.host",
    "unstable_stream.tiny_player",
    "unstable_stream.tracking.terminal_interface",
    "unstable_stream.workers.archiver",
    "unstable_stream.workers.learners",
]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_PRELOADED)


def _launch(arguments: Sequence[str], output: tuple[str, str], environ: dict[str, str]) -> None:
    for number, name in zip((1, 2), output, strict=True):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv[:] = ["unstable-stream", *arguments]
    main()


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

    def _fork(self, arguments: Sequence[str], stdout: Path, stderr: Path) -> _Forked:
        output = (str(stdout), str(stderr))
        return _Forked(
            _context.Process(target=_launch, args=(list(arguments), output, environment(self.log)))
        )

    async def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another command, forked, on the same data directory and log."""
        output = [self.data / f"{arguments[0]}-{name}.txt" for name in ("stdout", "stderr")]
        for path in output:
            path.unlink(missing_ok=True)
        status = await asyncio.to_thread(self._fork([*arguments, "--data", str(self.data)], *output).wait)
        said = [path.read_text() for path in output]
        return subprocess.CompletedProcess(arguments, status if status is not None else 1, *said)
