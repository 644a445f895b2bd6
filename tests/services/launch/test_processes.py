"""Service processes on every log: they do their work, end in peace at SIGTERM, and log as they are told."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import duckdb
import msgspec
import pytest

from tests.history.proofs.test_audit import checkpoint, history
from unstable_stream.events import Event, RunFinished, Step, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.reading import read_to_end, readable_events
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.service_output import Output

pytestmark = pytest.mark.longer

DEADLINE_S = 100.0


class Service:
    """A service process; whatever happens in the test, it is gone afterwards."""

    def __init__(self, name: str, run: str, data: Path, location: str, output: str = "console") -> None:
        self.log_path = data / f"{name}.log"
        module = "unstable_stream.services.launch.service"
        arguments = [name, "--run", run, "--data", str(data), "--log", location]
        with self.log_path.open("wb") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env={**os.environ, "UNSTABLE_STREAM_LOG_FORMAT": output, "OMP_NUM_THREADS": "1"},
            )

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def printed(self) -> str:
        """What it has printed so far."""
        return self.log_path.read_text()

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition; fails if the process ends first."""
        deadline = time.monotonic() + DEADLINE_S
        while not await holds():
            assert self.process.poll() is None, self.printed
            assert time.monotonic() < deadline, self.printed
            await asyncio.sleep(0.05)

    async def terminate(self) -> int:
        """Send SIGTERM and return the status it ends with."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, DEADLINE_S)


@pytest.fixture
async def run(any_log: EventLog) -> str:
    """A run that goes on: all its events but its end, and none that a processor derives."""
    name = f"process-{secrets.token_hex(4)}"
    await create_declared_topics(any_log, load_topics())
    events = [own(event, name) for event in history() if not isinstance(event, Step | RunFinished)]
    await append(any_log, events)
    return name


def own(event: Event, run: str) -> Event:
    """The event as one of ``run``, with an id nobody else has."""
    return msgspec.structs.replace(event, run_id=run, event_id=event_id(run, event.event_id))


async def append(log: EventLog, events: list[Event]) -> None:
    await log.append([record_from_event(event) for event in events])


async def test_the_archiver_ends_at_sigterm_with_all_of_it_archived(
    any_log: EventLog, location: str, run: str, tmp_path: Path
) -> None:
    with Service("archiver", run, tmp_path, location) as archiver:

        async def has_begun() -> bool:
            return (tmp_path / "archive.duckdb").exists()

        await archiver.until(has_begun)
        await append(any_log, [own(checkpoint(77), run)])
        assert await archiver.terminate() == 0, archiver.printed
    with duckdb.connect(str(tmp_path / "archive.duckdb"), read_only=True) as archive:
        rows = archive.execute("SELECT count(*) FROM checkpoints WHERE run_id = $1 AND iteration = 77", [run])
        assert rows.fetchone() == (1,)
    assert "Traceback" not in archiver.printed


async def test_the_processors_end_at_sigterm_with_all_of_it_processed(
    any_log: EventLog, location: str, run: str, tmp_path: Path
) -> None:
    with Service("processors", run, tmp_path, location) as processors:

        async def has_begun() -> bool:
            return f"reward-processor/{run}" in await any_log.groups()

        await processors.until(has_begun)
        assert await processors.terminate() == 0, processors.printed
    steps = [
        event.trajectory_id
        async for record in read_to_end(any_log, ("steps",))
        for event in readable_events([record])
        if isinstance(event, Step) and event.run_id == run
    ]
    assert len(steps) == 9  # three finished games of three trained turns
    assert "Traceback" not in processors.printed


async def test_the_monitor_serves_until_sigterm_and_logs_for_machines(
    any_log: EventLog, location: str, run: str, tmp_path: Path
) -> None:
    with Service("monitor", run, tmp_path, location, output="json") as monitor:

        async def serves() -> bool:
            return "serving metrics" in monitor.printed

        await monitor.until(serves)
        # On a broker that others use, it may also tell of their records that it cannot read.
        lines = [json.loads(line) for line in monitor.printed.splitlines()]
        (line,) = [line for line in lines if line["event"] == "serving metrics"]
        assert (line["service"], line["run"], line["level"]) == ("monitor", run, "info")
        with urllib.request.urlopen(f"http://127.0.0.1:{line['port']}/metrics", timeout=60) as response:
            served = response.read().decode()
        assert f'unstable_stream_run_active{{run="{run}"}} 1.0' in served
        assert f'unstable_stream_learner_update{{run="{run}"}} 2.0' in served
        assert await monitor.terminate() == 0, monitor.printed


@pytest.mark.parametrize("output", ["console", "json"])
async def test_a_failure_is_the_last_line(tmp_path: Path, output: str) -> None:
    died = Output(DataDir(tmp_path).service_logs("no-such-run") / "archiver.log")
    with Service("archiver", "no-such-run", tmp_path, "local", output) as archiver:
        assert await asyncio.to_thread(archiver.process.wait, DEADLINE_S) == 1
        last = archiver.printed.splitlines()[-1]
        if output == "json":
            fields = json.loads(last)
            assert (fields["level"], fields["service"]) == ("error", "archiver")
            last = fields["error"]
        assert str(died.death()) == "RunError: no run 'no-such-run' in this log; known runs: none"
        assert str(died.death()) in last
        assert "Traceback" not in archiver.printed
