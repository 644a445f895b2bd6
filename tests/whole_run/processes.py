"""A run in processes of its own, as a person starts it, and what a test sees of it: its log and its pids."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil

from tests.processes import Service, children_of, command_of, completed, end_together, send
from unstable_stream.events import Event
from unstable_stream.log.open import open_log_at
from unstable_stream.log.port import Consumer, EventLog, TopicPartition
from unstable_stream.log.records import event_from_record
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir

CONFIG = Path(__file__).resolve().parents[2] / "unstable_stream" / "api" / "quickstart.toml"
_SMALL = (
    "name=small",
    "seed=7",
    "learner.batch_size=96",
    "learner.mini_batch_size=96",
    "collector.num_workers=24",
    "collector.num_eval_workers=8",
    "evaluation.every=2",
    "evaluation.max_eval_games_per_ckpt=4",
    "evaluation.first_last_games=6",
)
# Generous: the machine may be busy with other work. A healthy idle one needs a tenth.
DEADLINE_S = float(os.environ.get("UNSTABLE_STREAM_TEST_DEADLINE_S", "300"))

RAY_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""They note after a minute that a killed launcher's Ray is gone. Nothing waits for them."""

EventT = TypeVar("EventT", bound=Event)


def command_line(*arguments: str) -> list[str]:
    """The command ``unstable-stream`` of this checkout."""
    return [sys.executable, "-c", "from unstable_stream.ui.cli import main; main()", *arguments]


def run_command(data: Path, *arguments: str, log: str = "local") -> "subprocess.CompletedProcess[str]":
    """Run an ``unstable-stream`` command on a data directory and a log to its end."""
    command = command_line(*arguments, "--data", str(data))
    return completed(*command, timeout=DEADLINE_S, env=environment(log))


def rows(data: Path, query: str) -> list[dict[str, Any]]:
    """Ask the archive in a data directory, as an analyst would."""
    done = run_command(data, "sql", query, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def environment(log: str) -> dict[str, str]:
    """The environment of a command that is to find the log by itself."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "UNSTABLE_STREAM_LOG": log}


class History:
    """The events of the one run on a log, read as they are written."""

    def __init__(self, data: Path, log: str = "local") -> None:
        self._data = DataDir(data)
        self.location = log
        self._log: EventLog | None = None
        self._consumer: Consumer | None = None
        self.events: list[Event] = []

    def of(self, kind: type[EventT]) -> list[EventT]:
        """Events of one type, in the order read; records seen twice appear twice."""
        return [event for event in self.events if isinstance(event, kind)]

    async def read(self, timeout_s: float = 0.0) -> None:
        """Take in what has been written."""
        if self._consumer is None:
            self._log = open_log_at(self.location, self._data.log)
            await create_declared_topics(self._log, load_topics())
            self._consumer = await self._log.consumer(list(load_topics()))
        while records := await self._consumer.poll(max_records=5000, timeout_s=timeout_s):
            self.events += [event_from_record(record) for record in records]
            timeout_s = 0.0

    async def read_all(self) -> None:
        """Take in everything up to the present ends."""
        await self.read()
        assert self._log is not None
        assert self._consumer is not None
        ends: dict[TopicPartition, int] = {}
        for topic in load_topics():
            ends.update(await self._log.end_offsets(topic))
        while any(self._consumer.positions()[where] < end for where, end in ends.items()):
            await self.read(timeout_s=0.2)

    async def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            await self._log.close()


class LaunchedRun:
    """``unstable-stream train`` in its own process; every process it starts is kept track of.

    Use as ``async with``: on leaving, whatever of it still runs is killed.
    """

    def __init__(
        self,
        data: Path,
        arguments: Sequence[str],
        log: str = "local",
        history: History | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """``deadline_s``: seconds that each wait for something of the run may take."""
        data.mkdir(parents=True, exist_ok=True)
        self.deadline_s = deadline_s
        self.data = data
        self.log = log
        self.history = history or History(data, log)
        self._owns_history = history is None
        self.stdout = data / "stdout.txt"
        self.stderr = data / "stderr.txt"
        self.arguments = list(arguments)
        self.seen: dict[int, psutil.Process] = {}

    @classmethod
    def train(
        cls,
        data: Path,
        *overrides: str,
        log: str = "local",
        history: History | None = None,
        command: Sequence[str] = ("train",),
    ) -> Self:
        """A small run from its beginning."""
        flags = [f"--set={override}" for override in (*_SMALL, *overrides)]
        return cls(data, [*command, str(CONFIG), *flags, "--data", str(data)], log, history)

    @classmethod
    def resume(cls, earlier: "LaunchedRun", run_id: str) -> Self:
        """The same run, gone on with."""
        arguments = ["train", "--resume", run_id, "--data", str(earlier.data)]
        return cls(earlier.data, arguments, earlier.log, earlier.history)

    def add(self, *arguments: str) -> None:
        """Give the command further arguments, before it is started."""
        self.arguments += arguments

    async def __aenter__(self) -> Self:
        self.popen = self._start()
        self.launcher = psutil.Process(self.popen.pid)
        self.seen = {self.popen.pid: self.launcher}
        return self

    def _start(self) -> "subprocess.Popen[bytes]":
        with self.stdout.open("ab") as stdout, self.stderr.open("ab") as stderr:
            return subprocess.Popen(
                command_line(*self.arguments),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=environment(self.log),
                start_new_session=True,
            )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.look()
        for process in self.seen.values():
            send(process)
        self.popen.wait()
        if self._owns_history:
            await self.history.close()

    def look(self) -> list[psutil.Process]:
        """Return the processes below the launcher now, and remember them."""
        found = children_of(self.launcher)
        self.seen.update((process.pid, process) for process in found)
        return found

    async def kill(self, words: str) -> int:
        """kill -9 the one process below the launcher whose command line has ``words``; return its pid."""
        while not send(process := await self.find(words)):
            pass  # it has just ended: another one takes its place
        return int(process.pid)

    async def find(self, words: str) -> psutil.Process:
        """Return the one process below the launcher whose command line has ``words``, once it is there."""
        matching: list[psutil.Process] = []

        def is_there(_: History) -> bool:
            matching[:] = [process for process in self.look() if words in command_of(process)]
            return len(matching) == 1

        await self.until(f"a process {words!r}", is_there)
        return matching[0]

    async def until(self, what: str, condition: Callable[[History], bool]) -> None:
        """Read the log until ``condition`` holds. Fails at the deadline, or if the launcher ends before."""
        deadline = time.monotonic() + self.deadline_s
        while True:
            ended = self.popen.poll() is not None
            await self.history.read(timeout_s=0.2)
            self.look()
            if condition(self.history):
                return
            assert not ended, f"the run ended with {self.popen.returncode} before {what}:\n{self.told()}"
            assert time.monotonic() < deadline, f"{what}: not within {self.deadline_s:g} s\n{self.told()}"

    async def end(self) -> int:
        """Wait for the launcher; return its exit status, once all it wrote has been read."""
        deadline = time.monotonic() + self.deadline_s
        while self.popen.poll() is None:
            assert time.monotonic() < deadline, f"still running after {self.deadline_s:g} s\n{self.told()}"
            self.look()
            await self.history.read(timeout_s=0.2)
        await self.history.read_all()
        return self.popen.returncode

    def left_behind(self, *exempt: str) -> list[str]:
        """What of all processes ever seen is still there, given time to go, but for ``exempt`` commands."""
        watched = [process for process in self.seen.values() if not command_of(process).startswith(exempt)]
        return [f"{process.pid} {command_of(process)}" for process in end_together(watched, within_s=60)]

    def told(self) -> str:
        """What the run printed, and the ends of its services' logs."""
        parts = [f"--- {path.name}\n{path.read_text()[-2000:]}" for path in (self.stdout, self.stderr)]
        parts += [f"--- {path.name}\n{path.read_text()[-1500:]}" for path in self.data.glob("logs/*/*.log")]
        return "\n".join(parts)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.popen.send_signal(signal.SIGINT)

    async def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another ``unstable-stream`` command on the same data directory and log."""
        return await asyncio.to_thread(run_command, self.data, *arguments, log=self.log)

    async def prove(self, run_id: str) -> str:
        """Check that ``audit`` and ``verify`` find nothing wrong; return what they printed."""
        done = [await self.command(command, run_id) for command in ("audit", "verify")]
        assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 2, done
        return "".join(each.stdout for each in done)


class StandingService(Service):
    """A command that stands beside the runs of a log, in its own process and data directory.

    On leaving ``with`` it is asked to end, as by Docker or Kubernetes, unless the test has failed.
    """

    def __init__(self, data: Path, log: str, *arguments: str) -> None:
        self._asked = arguments
        command = command_line(*arguments, "--data", str(data))
        super().__init__(data / "output.txt", *command, UNSTABLE_STREAM_LOG=log)

    def __exit__(self, *error: object) -> None:
        try:
            if not any(error):
                assert self.process.poll() is None, f"{self._asked} ended:\n{self.printed}"
                self.process.terminate()
                status = self.process.wait(DEADLINE_S)
                assert status == 0, f"{self._asked} ended with {status}:\n{self.printed}"
        finally:
            self.kill()
