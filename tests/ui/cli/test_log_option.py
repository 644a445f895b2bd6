"""``--log`` on every command: which log is meant, what is said when it is not there, what hints repeat."""

import asyncio
import json
import secrets
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.command_line import run_command
from tests.history.proofs.test_audit import RUN, history
from tests.places import append, ask, on_log
from unstable_stream.errors import LogUnavailableError
from unstable_stream.events import RunStarted
from unstable_stream.log.open import check_log, open_log_at, opened_log
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir

pytestmark = pytest.mark.longer

NOBODY = "kafka://127.0.0.1:1"


def test_brokers_that_are_not_there_are_one_clear_line(tmp_path: Path) -> None:
    variable = {"UNSTABLE_STREAM_LOG": NOBODY}
    for result in (
        run_command("topics", "--log", NOBODY, cwd=tmp_path),
        run_command("quickstart", cwd=tmp_path, **variable),
    ):
        assert (result.returncode, result.stdout) == (1, ""), result.args
        assert result.stderr.startswith("error: kafka://127.0.0.1:1: could not connect: "), result.stderr
        assert result.stderr.count("\n") == 1, result.stderr
    assert list(tmp_path.iterdir()) == []


async def test_that_they_are_not_there_is_known_soon(tmp_path: Path) -> None:
    """Sooner than a service gives up, which waits for its brokers."""
    patient = open_log_at(NOBODY, DataDir(tmp_path).log)
    waiting = asyncio.ensure_future(patient.topics())
    checking = asyncio.ensure_future(check_log(NOBODY, DataDir(tmp_path).log))
    done, _ = await asyncio.wait([waiting, checking], timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert done == {checking}
    with pytest.raises(LogUnavailableError):
        await checking
    waiting.cancel()
    await asyncio.wait([waiting])
    await patient.close()


def test_a_log_whose_topics_would_lose_records_is_refused_before_the_run(tmp_path: Path) -> None:
    on_log(tmp_path, lambda log: log.create_topics([replace(load_topics()["steps"], partitions=2)]))
    result = run_command("quickstart", "--quiet", "--data", str(tmp_path), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: topics of this log are not as declared")
    assert "steps: partitions 2, declared 8\n" in result.stderr
    assert "Traceback" not in result.stderr
    assert list(tmp_path.glob("logs")) == []  # no service was started


def test_the_option_wins_over_the_environment_and_must_be_of_a_known_kind(tmp_path: Path) -> None:
    by_option = run_command("topics", "check", "--log", "local", cwd=tmp_path, UNSTABLE_STREAM_LOG=NOBODY)
    assert by_option.stderr.startswith("error: no event log at unstable-data/log.sqlite")
    result = run_command("topics", "check", "--log", "redis://x", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("error: log")


def test_the_log_of_the_configuration_is_overridden(tmp_path: Path) -> None:
    printed = run_command("quickstart", "--print-config", cwd=tmp_path)
    config = tmp_path / "my.toml"
    config.write_text(printed.stdout)
    for log, expected in ((None, "local"), ("kafka://b:9092", "kafka://b:9092")):
        option = [] if log is None else ["--log", log]
        dry = run_command("train", str(config), "--dry-run", "--metrics-port", "19999", *option, cwd=tmp_path)
        assert dry.returncode == 0, dry.stderr
        resolved = json.loads(dry.stdout)
        assert (resolved["log"], resolved["metrics_port"]) == (expected, 19999)


def test_options_lead_a_command_to_the_same_place() -> None:
    assert DataDir(Path("unstable-data")).options() == ""
    options = DataDir(Path("my data")).options("kafka://h:1?a=b&c=d")
    assert options == " --data 'my data' --log 'kafka://h:1?a=b&c=d'"


def test_runs_of_a_log_are_listed_without_an_archive(tmp_path: Path) -> None:
    later = [
        msgspec.structs.replace(
            event, run_id="later", event_id=f"later-{event.event_id}", occurred_at_ms=1000
        )
        for event in history()[:-1]  # it has not finished
    ]
    append(tmp_path, [*history(), *later])
    for option in ([], ["--log", "local"]):
        rows = json.loads(ask(tmp_path, "runs", "--json", *option).stdout)
        assert [(row["run"], row["state"], row["updates"]) for row in rows] == [
            ("later", "lost", 2),  # it has been silent since 1970
            (RUN, "completed", 2),
        ]
        assert rows[0]["started"].startswith("1970-01-01T00:00:01")
        assert rows[0]["silence"].startswith("silent for ")
        assert rows[1]["silence"] is None


def test_runs_of_a_kafka_log_are_listed(kafka_bootstrap: str, tmp_path: Path) -> None:
    run, location = f"run-{secrets.token_hex(4)}", f"kafka://{kafka_bootstrap}"

    async def begin() -> None:
        async with opened_log(location, DataDir(tmp_path).log) as log:
            await create_declared_topics(log, load_topics())
            begun = next(event for event in history() if isinstance(event, RunStarted))
            await log.append([record_from_event(msgspec.structs.replace(begun, run_id=run))])

    asyncio.run(begin())
    for arguments in (
        ["runs", "--log", location, "--csv"],
        ["log", "tail", "runs", "--run", run, "--log", location],
    ):
        result = run_command(*arguments, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert (run in result.stdout) or ("run-started" in result.stdout)
    audit = run_command("audit", run, "--log", location, cwd=tmp_path)
    assert f"{run} (" in audit.stdout, audit.stderr
    unknown = run_command("watch", "no-such-run", "--log", location, cwd=tmp_path)
    # Warnings about what other tests left on the shared broker may stand before it.
    assert "error: no run 'no-such-run' in this log" in unknown.stderr
