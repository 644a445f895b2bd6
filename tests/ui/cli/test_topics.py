"""``unstable-stream topics`` and ``log tail`` on every log: what is declared, what is there, what differs."""

import asyncio
import csv
import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests import places
from tests.archive.history import made_up_run
from tests.builders import made
from tests.command_line import PROGRAM
from tests.places import append
from unstable_stream.errors import EventLogError
from unstable_stream.events import RunStarted, Step
from unstable_stream.log import topic_drift, topics
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import EventLog, Positions, Record, TopicPartition, TopicSpec
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.ui.cli import app

pytestmark = pytest.mark.longer


@pytest.fixture
def place(location: str, tmp_path: Path) -> list[str]:
    """``--data`` and ``--log`` of each kind of log."""
    return ["--data", str(tmp_path), "--log", location]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, TopicSpec]:
    """Two topics nobody else has, declared instead of ours, so that a shared broker does not matter."""
    unique = secrets.token_hex(4)
    specs = {
        spec.name: spec
        for spec in (
            TopicSpec(f"a-{unique}", 3, retention_ms=86_400_000, key="run", events=("step",)),
            TopicSpec(f"b-{unique}", 1, cleanup_policy="compact", max_message_bytes=2_000_000),
        )
    }
    monkeypatch.setattr(topics, "load_topics", lambda: specs)
    monkeypatch.setattr(topic_drift, "load_topics", lambda: specs)
    return specs


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def on_log(place: list[str], work: Callable[[EventLog], Awaitable[object]]) -> None:
    async def do() -> None:
        async with opened_log(place[3], DataDir(Path(place[1])).log) as log:
            await work(log)

    asyncio.run(do())


def test_missing_topics_are_created_and_then_all_is_as_declared(
    place: list[str], declared: Mapping[str, TopicSpec]
) -> None:
    first, second = declared
    made = run("topics", "create", *place)
    assert (made.exit_code, made.output) == (0, f"created: {first}, {second}\n"), made.output
    again = run("topics", "create", "--alter", *place)
    assert again.output == "created: none, all were there\naltered: none, all were as declared\n"
    checked = run("topics", "check", *place)
    assert (checked.exit_code, checked.output) == (0, "2 topics are as declared\n")


def test_drift_is_told_with_the_command_that_mends_it(
    place: list[str], declared: Mapping[str, TopicSpec]
) -> None:
    first, second = declared.values()
    changed = replace(first, retention_ms=3_600_000)

    other = replace(second, cleanup_policy="delete", max_message_bytes=1_000_000)
    on_log(place, lambda log: log.create_topics([changed, other]))
    checked = run("topics", "check", *place)
    assert checked.exit_code == 1
    place_options = f" --data {place[1]}" + (f" --log {place[3]}" if place[3] != "local" else "")
    mend = f"    unstable-stream topics create --alter{place_options}"
    assert checked.output.splitlines() == [
        f"{first.name}: retention 3600000 ms, declared 1 days",
        mend,
        f"{second.name}: cleanup policy delete, declared compact",
        mend,
        f"{second.name}: max message bytes 1,000,000 bytes, declared 2,000,000 bytes",
        mend,
    ]
    told = run("topics", "create", *place)
    assert told.stdout == "created: none, all were there\n"
    assert told.stderr.startswith(f"not as declared: {first.name}, {second.name}; see")
    altered = run("topics", "create", "--alter", *place)
    assert altered.stdout.splitlines()[-1] == f"altered: {first.name}, {second.name}"
    assert run("topics", "check", *place).exit_code == 0


def test_other_partitions_cannot_be_mended_by_a_command(
    place: list[str], declared: Mapping[str, TopicSpec]
) -> None:
    first, second = declared.values()

    on_log(place, lambda log: log.create_topics([replace(first, partitions=2)]))
    checked = run("topics", "check", *place)
    assert checked.exit_code == 1
    assert (
        f"{first.name}: partitions 2, declared 3\n    the records of a key would lie on two partitions"
        in checked.output
    )
    assert f"{second.name}: missing\n    unstable-stream topics create" in checked.output
    refused = CliRunner().invoke(app, ["topics", "create", *place])
    assert refused.exit_code == 1
    assert "2 partitions" in str(refused.exception)

    with pytest.raises(EventLogError, match=f"{first.name}: partitions 2, declared 3"):
        on_log(place, lambda log: topic_drift.prepare_topics(log, place[3]))


def test_a_topic_is_described_as_declared_and_as_it_is(
    place: list[str], declared: Mapping[str, TopicSpec]
) -> None:
    first, _ = declared.values()

    on_log(place, lambda log: log.create_topics([replace(first, retention_ms=3_600_000)]))
    lines = [line.split() for line in run("topics", "describe", first.name, *place).output.splitlines()]
    assert ["partitions", "3", "3"] in lines
    assert ["retention", "1", "days", "3600000", "ms"] in lines
    assert ["cleanup", "policy", "delete", "delete"] in lines
    listed = [line.split() for line in run("topics", *place).output.splitlines()]
    assert [first.name, "run", "3", "1", "days", "step", "0"] in listed
    assert run("topics", "list", *place).output == run("topics", *place).output


async def commit(log: EventLog, group: str, positions: Positions) -> None:
    producer = await log.producer(group)
    async with producer.transaction() as transaction:
        await transaction.commit_positions(group, positions)
    await producer.close()


def test_the_lag_of_a_group_is_shown_by_topic_and_by_partition(
    place: list[str], declared: Mapping[str, TopicSpec]
) -> None:
    first, _ = declared.values()
    group = f"group-{first.name}"

    async def fall_behind(log: EventLog) -> None:
        await log.create_topics([first])
        await log.append([Record(first.name, "k", b"x", partition=n % 2) for n in range(6)])
        await commit(log, group, {TopicPartition(first.name, 0): 1})

    on_log(place, fall_behind)
    whole = run("topics", "lag", "--group", group, "--json", *place)
    (row,) = json.loads(whole.stdout)
    assert (row["group"], row["topic"], row["committed"], row["lag"]) == (group, first.name, 1, 5)
    parts = run("topics", "lag", "--group", group, "--partitions", "--csv", *place)
    rows = list(csv.DictReader(parts.stdout.splitlines()))
    assert [(each["partition"], each["committed"], each["lag"]) for each in rows] == [
        ("0", "1", "2"),
        ("1", "", "3"),
        ("2", "", "0"),
    ]
    assert run("topics", "lag", "--group", "nobody-at-all", "--json", *place).stdout == "[\n]\n"


def test_watching_the_lag_prints_a_line_a_measurement_until_interrupted(place: list[str]) -> None:
    group = f"group-{secrets.token_hex(4)}"

    async def catch_up(log: EventLog) -> None:
        await topic_drift.prepare_topics(log, place[3])
        await commit(log, group, await log.end_offsets("checkpoints"))

    on_log(place, catch_up)
    arguments = ["topics", "lag", "--group", group, "--watch", "--json", *place]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        for _ in range(2):
            (row,) = json.loads(watching.stdout.readline())
            assert (row["group"], row["topic"]) == (group, "checkpoints")
        watching.send_signal(signal.SIGINT)
        _, errors = watching.communicate(timeout=60)
    # Warnings about what other tests left on a shared broker are no errors of this one.
    said = [line for line in errors.splitlines() if "[warning" not in line]
    assert (watching.returncode, said) == (0, [])


def test_the_tail_of_a_topic_is_its_last_records(place: list[str], declared: Mapping[str, TopicSpec]) -> None:
    first, _ = declared.values()
    runs = [f"{first.name}-{number}" for number in range(2)]

    async def write(log: EventLog) -> None:
        await create_declared_topics(log, load_topics())
        await log.create_topics([first])
        await log.append([record_from_event(made(RunStarted, run_id=run_id)) for run_id in runs])
        producer = await log.producer(f"tail-{first.name}")
        for number in range(20):
            body = json.dumps({"type": "step", "run_id": runs[number % 2], "number": number}).encode()
            async with producer.transaction() as transaction:
                await transaction.append([Record(first.name, "k", body, timestamp_ms=1000 + number)])
        await producer.close()
        await log.append([Record(first.name, "k", b"\x00\x1b[31m no json", timestamp_ms=5000)])

    on_log(place, write)
    tail = run("log", "tail", first.name, "-n", "3", *place)
    lines = tail.stdout.splitlines()
    assert tail.exit_code == 0, tail.output
    assert [line.split(" ", 2)[2] for line in lines[:2]] == ["step number=18", "step number=19"]
    assert "unreadable=" in lines[2]
    assert "\x1b" not in lines[2]
    of_run = run("log", "tail", first.name, "-n", "3", "--run", runs[1], "--json", *place)
    assert [json.loads(line)["number"] for line in of_run.stdout.splitlines()] == [15, 17, 19]
    assert run("log", "tail", first.name, "-n", "0", *place).output == ""


def test_a_topic_that_does_not_exist_is_an_error(place: list[str]) -> None:
    on_log(place, lambda log: log.topics())
    for arguments in (["topics", "describe", "nope"], ["log", "tail", "nope-at-all"]):
        result = CliRunner().invoke(app, [*arguments, *place])
        assert result.exit_code == 1
        assert "nope" in str(result.exception)


def test_without_a_log_there_is_the_declaration_but_nothing_to_check(tmp_path: Path) -> None:
    nowhere = ["--data", str(tmp_path / "nowhere")]
    assert "trajectories" in run("topics", *nowhere).output
    assert "prompt_token_ids" in run("topics", "describe", "steps", *nowhere).output
    for command in (["topics", "check"], ["topics", "lag"], ["log", "tail", "runs"]):
        result = CliRunner().invoke(app, [*command, *nowhere])
        assert result.exit_code == 1
        assert "no event log at" in str(result.exception)
    assert not (tmp_path / "nowhere").exists()


def test_documents_for_others_are_printed_whole() -> None:
    assert run("topics", "asyncapi").stdout == (topics.TOPICS_DIR / "asyncapi.json").read_text()
    manifests = list(yaml.safe_load_all(run("topics", "strimzi", "--cluster", "c", "--replicas", "1").stdout))
    assert {each["metadata"]["name"] for each in manifests} == set(topics.load_topics())
    assert all(each["spec"]["replicas"] == 1 for each in manifests)


def test_expired_records_are_trimmed_by_hand(tmp_path: Path) -> None:
    place = ["--data", str(tmp_path)]
    events = made_up_run()
    steps = sum(isinstance(event, Step) for event in events)

    append(tmp_path, events)
    assert "no archive at" in str(run("topics", "trim", *place).exception)
    assert run("archive", *place).exit_code == 0
    planned = run("topics", "trim", "--dry-run", *place)
    assert planned.exit_code == 0
    counts = [int(line.split()[1]) for line in planned.output.splitlines() if line.startswith("steps")]
    assert sum(counts) == steps
    assert "would be deleted" in planned.output
    assert run("topics", "trim", "--shrink", *place).output == planned.output.replace("would be ", "")
    assert run("topics", "trim", *place).output == "nothing has expired\n"


def test_saved_states_of_ended_runs_are_pruned_by_hand(tmp_path: Path) -> None:
    place = ["--data", str(tmp_path)]
    started = made(RunStarted, run_id="run-b", occurred_at_ms=int(time.time() * 1000), config={})
    append(tmp_path, [*made_up_run(), started])

    async def save(log: LocalLog) -> None:
        async with (await log.producer("a processor")).transaction() as transaction:
            await transaction.save("rating-processor/game-outcomes/0", {"position": b"1", "run/run-a": b"1"})

    places.on_log(tmp_path, save)
    assert run("prune", "--dry-run", *place).output == "1 saved states of 1 runs would be forgotten\n"
    assert "run run-b has not ended" in str(run("prune", "run-b", *place).exception)
    assert run("prune", "run-a", *place).output == "1 saved states of 1 runs forgotten\n"
    assert run("prune", *place).output == "0 saved states of 0 runs forgotten\n"


@pytest.mark.parametrize("location", ["kafka"], indirect=True)
def test_kafka_deletes_by_itself(place: list[str]) -> None:
    assert "deletes expired records by itself" in str(run("topics", "trim", *place).exception)
