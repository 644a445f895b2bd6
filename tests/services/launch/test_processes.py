"""Service processes on every log: they do their work, end in peace at SIGTERM, and log as they are told."""

import json
import secrets
import sys
import urllib.request
from pathlib import Path

import duckdb
import msgspec
import pytest

from tests.history.proofs.test_audit import checkpoint, history
from tests.processes import Service, until
from tests.services.streams.hosted_games import events as stored_events
from tests.tiers import chosen
from unstable_stream.events import Event, RunFinished, Step, event_id
from unstable_stream.log.port import EventLog
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.launch.service_output import Output

pytestmark = pytest.mark.longer
LOCAL_OR_LONG = chosen("location", ["local"], ["kafka"], indirect=True)


def service(name: str, run: str, data: Path, location: str, output: str = "console") -> Service:
    command = [sys.executable, "-m", "unstable_stream.services.launch.service", name, "--run", run]
    where = ["--data", str(data), "--log", location]
    return Service(data / f"{name}.log", *command, *where, UNSTABLE_STREAM_LOG_FORMAT=output)


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


@LOCAL_OR_LONG
async def test_the_archiver_ends_at_sigterm_with_all_of_it_archived(
    any_log: EventLog, location: str, run: str, tmp_path: Path
) -> None:
    with service("archiver", run, tmp_path, location) as archiver:
        await until((tmp_path / "archive.duckdb").exists, archiver)
        await append(any_log, [own(checkpoint(77), run)])
        assert await archiver.end() == 0, archiver.printed
    with duckdb.connect(str(tmp_path / "archive.duckdb"), read_only=True) as archive:
        rows = archive.execute("SELECT count(*) FROM checkpoints WHERE run_id = $1 AND iteration = 77", [run])
        assert rows.fetchone() == (1,)
    assert "Traceback" not in archiver.printed


@LOCAL_OR_LONG
async def test_the_processors_end_at_sigterm_with_all_of_it_processed(
    any_log: EventLog, location: str, run: str, tmp_path: Path
) -> None:
    with service("processors", run, tmp_path, location) as processors:

        async def has_begun() -> bool:
            return f"reward-processor/{run}" in await any_log.groups()

        await until(has_begun, processors)
        assert await processors.end() == 0, processors.printed
    assert len(await stored_events(any_log, "steps", run)) == 9  # three finished games of three trained turns
    assert "Traceback" not in processors.printed


@LOCAL_OR_LONG
async def test_the_monitor_serves_until_sigterm_and_logs_for_machines(
    any_log: EventLog, location: str, run: str, tmp_path: Path
) -> None:
    with service("monitor", run, tmp_path, location, output="json") as monitor:
        await until(lambda: "serving metrics" in monitor.printed, monitor)
        # On a broker that others use, it may also tell of their records that it cannot read.
        lines = [json.loads(line) for line in monitor.printed.splitlines()]
        (line,) = [line for line in lines if line["event"] == "serving metrics"]
        assert (line["service"], line["run"], line["level"]) == ("monitor", run, "info")
        with urllib.request.urlopen(f"http://127.0.0.1:{line['port']}/metrics", timeout=60) as response:
            served = response.read().decode()
        assert f'unstable_stream_run_active{{run="{run}"}} 1.0' in served
        assert f'unstable_stream_learner_update{{run="{run}"}} 2.0' in served
        assert await monitor.end() == 0, monitor.printed


@pytest.mark.parametrize("output", ["console", "json"])
async def test_a_failure_is_the_last_line(tmp_path: Path, output: str) -> None:
    told = Output(DataDir(tmp_path).service_logs("no-such-run") / "archiver.log")
    with service("archiver", "no-such-run", tmp_path, "local", output) as archiver:
        assert await archiver.end(None) == 1
        last = archiver.printed.splitlines()[-1]
        if output == "json":
            fields = json.loads(last)
            assert (fields["level"], fields["service"]) == ("error", "archiver")
            last = fields["error"]
        assert str(told.death()) == "RunError: no run 'no-such-run' in this log; known runs: none"
        assert str(told.death()) in last
        assert "Traceback" not in archiver.printed
