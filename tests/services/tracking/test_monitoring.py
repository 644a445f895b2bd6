"""What is served to Prometheus is what the log holds, on every log, also while it grows."""

import asyncio
import json
import re
import secrets
import socket
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import made
from tests.history.proofs.test_audit import checkpoint, history, update
from unstable_stream.errors import LogUnavailableError, ServiceError
from unstable_stream.events import Event, Metrics, RecordRejected, RunFinished, RunStarted, event_id
from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.services.tracking.prometheus import MonitorState, exposition, run_monitor
from unstable_stream.services.tracking.service_reports import ARCHIVER, LAUNCHER, archived_values

pytestmark = pytest.mark.longer

ROOT = Path(__file__).parents[3]
DEADLINE_S = 60.0

Samples: TypeAlias = dict[tuple[str, frozenset[tuple[str, str]]], float]


def stored(event: Event, **changes: Any) -> StoredRecord:
    record = record_from_event(msgspec.structs.replace(event, **changes))
    return StoredRecord(record.topic, 0, 0, record.key, record.value, record.headers, record.timestamp_ms)


def folded(*events: Event, most_runs: int = 100) -> MonitorState:
    state = MonitorState(most_runs)
    for event in events:
        state.apply(stored(event))
    return state


def metrics(source: str, values: dict[str, float], run: str = "run-test") -> Metrics:
    return Metrics(event_id="m", run_id=run, occurred_at_ms=5, source=source, values=values)


def rejected(consumer: str, run: str) -> RecordRejected:
    return made(RecordRejected, run_id=run, consumer=consumer, offset=3, reason="EventDecodeError: no")


# -- the fold ---------------------------------------------------------------------------------------


def test_a_whole_run_is_counted() -> None:
    state = folded(*history())
    run = "run-test"
    assert state.values["events"][run, "games", "game-started"] == 4
    assert state.values["events"][run, "steps", "step"] == 9
    assert state.values["events"][run, "trajectories", "trajectory"] == 3
    assert state.values["games"] == {(run, "train", "win"): 3}
    assert (state.values["steps_trained"][run,], state.values["steps_dropped"][run, "stale"]) == (7, 1)
    assert state.values["learner_update"][run,] == 2
    assert state.runs.runs[run].state == "completed"


def test_an_update_delivered_again_is_counted_once() -> None:
    again = update(1, ["s1", "s2"], [])
    state = folded(again, again, update(2, ["s3"], ["s4"]), again)
    assert (state.values["steps_trained"]["run-test",], state.values["learner_update"]["run-test",]) == (3, 2)
    assert state.values["steps_dropped"] == {("run-test", "stale"): 1}


def test_dead_letters_are_by_consumer_without_its_run() -> None:
    state = folded(
        rejected("reward-processor/run-test", "run-test"), rejected("archiver", ""), rejected("archiver", "")
    )
    assert state.values["dead_letters"] == {
        ("run-test", "reward-processor", "steps"): 1,
        ("", "archiver", "steps"): 2,
    }


def test_what_services_say_of_themselves_is_kept_until_the_run_ends() -> None:
    said = {"services/learner/up": 1.0, "services/learner/restarts": 2.0}
    state = folded(
        metrics(LAUNCHER, said), metrics(ARCHIVER, archived_values(12)), metrics("engine-0", {"tok_s": 3.5})
    )
    key = ("run-test", "learner")
    assert (state.values["service_up"][key], state.values["service_restarts"][key]) == (1.0, 2.0)
    assert state.values["archive_records"] == {("run-test",): 12.0}
    assert state.values["value"] == {("run-test", "engine-0", "tok_s"): 3.5}
    state.apply(stored(history()[-1]))
    assert (
        state.values["service_up"][key],
        state.values["service_restarts"][key],
        state.values["value"],
    ) == (0.0, 2.0, {})


def test_progress_is_the_latest_update_or_start() -> None:
    started, *_ = history()
    state = folded(started)
    assert state.values["learner_progress_timestamp_seconds"]["run-test",] == 0.0
    state.apply(stored(update(1, ["s"], []), occurred_at_ms=61_500))
    state.apply(stored(started, occurred_at_ms=3_000))
    assert state.values["learner_progress_timestamp_seconds"]["run-test",] == 61.5


@pytest.mark.parametrize("value", [b"", b"not json", b'{"type": "unknown"}', b"[]"])
def test_what_is_no_event_is_counted_too(value: bytes) -> None:
    state = MonitorState()
    state.apply(StoredRecord("steps", 0, 0, "k", value, {}, 1))
    assert state.values["events"] == {("", "steps", "unreadable"): 1}


def test_of_many_runs_the_latest_are_kept() -> None:
    state = MonitorState(most_runs=2)
    begun = history()[0]
    for run in ("a", "b", "c", "b", "d"):
        state.apply(stored(begun, run_id=run))
    assert set(state.runs.runs) == {"b", "d"}
    assert {key[0] for key in state.values["events"]} == {"b", "d"}
    assert state.values["events"]["b", "runs", "run-started"] == 2


# -- what is served ---------------------------------------------------------------------------------


def test_every_documented_metric_exists_and_no_other() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]*)\|", page, re.MULTILINE)
    documented = {
        name: {label for label in labels.replace(" ", "").split(",") if label} for name, labels in rows
    }
    served = {}
    for family in exposition(MonitorState(), [], {}, log_up=True):
        name = family.name.removeprefix("unstable_stream_")
        served[f"{name}_total" if family.type == "counter" else name] = set(getattr(family, "_labelnames"))  # noqa: B009
    assert documented == served


def names_in(text: str) -> set[str]:
    return set(re.findall(r"unstable_stream_(\w+)", text))


def served_names() -> set[str]:
    return {
        family.name.removeprefix("unstable_stream_") + ("_total" if family.type == "counter" else "")
        for family in exposition(MonitorState(), [], {}, log_up=True)
    }


def test_the_dashboard_and_alerts_ask_for_what_exists() -> None:
    dashboard = json.loads((ROOT / "infra/prometheus/dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked) > 10
    rules = yaml.safe_load((ROOT / "infra/prometheus/alerts.yml").read_text(encoding="utf-8"))
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expression in (*asked, *alerts):
        assert names_in(expression), expression
        assert names_in(expression) <= served_names(), expression
        assert expression.count("(") == expression.count(")")


def test_the_documented_alerts_are_the_ones_in_the_file() -> None:
    rules = yaml.safe_load((ROOT / "infra/prometheus/alerts.yml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert f"| `{rule['expr']}` |" in page, rule["alert"]
    scraping = yaml.safe_load((ROOT / "infra/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    assert scraping["rule_files"] == ["alerts.yml"]


# -- the monitor ------------------------------------------------------------------------------------


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        text = response.read().decode()
    return {
        (sample.name.removeprefix("unstable_stream_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset(values.items())


async def watched(
    log: EventLog, start: Any, look: Callable[[Callable[[], Awaitable[Samples]]], Awaitable[None]]
) -> None:
    """Run a monitor; call ``look`` once it has caught up, with what scrapes it."""
    stop = asyncio.Event()
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    monitor = asyncio.ensure_future(
        run_monitor(log, port=0, start=start, stop=stop, every_s=0.1, on_ready=ready.set_result)
    )
    try:
        monitor.add_done_callback(lambda ended: None if ready.done() else ready.cancel())
        port = await asyncio.wait_for(ready, DEADLINE_S)
        await look(lambda: asyncio.to_thread(scrape, port))
    finally:
        stop.set()
        await asyncio.wait_for(monitor, DEADLINE_S)


async def until(scraped: Callable[[], Awaitable[Samples]], holds: Callable[[Samples], bool]) -> Samples:
    deadline = time.monotonic() + DEADLINE_S
    while not holds(samples := await scraped()):
        assert time.monotonic() < deadline, samples
    return samples


async def test_it_serves_what_is_there_and_what_comes(any_log: EventLog) -> None:
    run = f"monitored-{secrets.token_hex(4)}"
    await create_declared_topics(any_log, load_topics())
    begun_ms = time.time_ns() // 1_000_000
    events = [
        msgspec.structs.replace(event, run_id=run, occurred_at_ms=begun_ms)
        for event in history()
        if not isinstance(event, RunFinished)
    ]
    await any_log.append([record_from_event(event) for event in events])
    group = f"reward-processor/{run}"
    ends = await any_log.end_offsets("runs")
    producer = await any_log.producer(f"test-{run}")
    async with producer.transaction() as transaction:
        await transaction.commit_positions(group, ends)
    await producer.close()

    async def look(scraped: Callable[[], Awaitable[Samples]]) -> None:
        samples = await scraped()
        assert samples["log_up", labels()] == 1
        assert samples["events_total", labels(run=run, topic="steps", type="step")] == 9
        assert samples["games_total", labels(run=run, split="train", reason="win")] == 3
        assert samples["steps_trained_total", labels(run=run)] == 7
        assert samples["learner_update", labels(run=run)] == 2
        assert samples["run_active", labels(run=run)] == 1
        where = labels(group=group, topic="runs", partition="0")
        assert samples["consumer_position", where] == ends[TopicPartition("runs", 0)]
        later = [
            msgspec.structs.replace(update(3, ["a", "b"], []), run_id=run),
            msgspec.structs.replace(checkpoint(3), run_id=run),
        ]
        await any_log.append([record_from_event(event) for event in later])
        samples = await until(scraped, lambda now: now["learner_update", labels(run=run)] == 3)
        assert samples["steps_trained_total", labels(run=run)] == 9
        # Somebody writes to runs: the group that reads it falls behind by as many records.
        lag_before = samples["consumer_lag", where]
        begun = [event for event in events if isinstance(event, RunStarted)]
        await any_log.append([record_from_event(event) for event in begun * 5])
        await until(scraped, lambda now: now["consumer_lag", where] >= lag_before + 5)
        end = msgspec.structs.replace(history()[-1], run_id=run, event_id=event_id(run, "run-finished", 0))
        await any_log.append([record_from_event(end)])
        samples = await until(scraped, lambda now: now["run_active", labels(run=run)] == 0)
        await until(scraped, lambda now: ("consumer_lag", where) not in now)

    await watched(any_log, begun_ms, look)


async def test_from_the_end_it_counts_only_what_comes_but_knows_the_runs(any_log: EventLog) -> None:
    run = f"monitored-{secrets.token_hex(4)}"
    await create_declared_topics(any_log, load_topics())
    events = [msgspec.structs.replace(event, run_id=run) for event in history()[:-1]]
    await any_log.append([record_from_event(event) for event in events])

    async def look(scraped: Callable[[], Awaitable[Samples]]) -> None:
        samples = await scraped()
        assert samples["run_active", labels(run=run)] == 1
        assert ("steps_trained_total", labels(run=run)) not in samples
        later = msgspec.structs.replace(update(3, ["a", "b"], []), run_id=run)
        await any_log.append([record_from_event(later)])
        samples = await until(scraped, lambda now: ("learner_update", labels(run=run)) in now)
        assert samples["steps_trained_total", labels(run=run)] == 2

    await watched(any_log, "end", look)


async def test_it_waits_for_the_first_run_to_make_the_topics(tmp_path: Path) -> None:
    from unstable_stream.log.local.log import LocalLog

    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:

        async def look(scraped: Callable[[], Awaitable[Samples]]) -> None:
            assert {name for name, _ in await scraped()} == {"log_up"}
            await log.create_topics([load_topics()["runs"]])
            await log.append([record_from_event(history()[0])])
            await until(scraped, lambda now: ("run_active", labels(run="run-test")) in now)
            await create_declared_topics(log, load_topics())
            await log.append([record_from_event(event) for event in history()[1:]])
            samples = await until(scraped, lambda now: now["run_active", labels(run="run-test")] == 0)
            assert samples["events_total", labels(run="run-test", topic="runs", type="run-started")] == 1

        await watched(log, "beginning", look)


async def test_a_log_that_goes_away_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unstable_stream.log.local.log import LocalLog

    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await create_declared_topics(log, load_topics())
        groups = log.groups

        async def unreachable() -> list[str]:
            raise LogUnavailableError("gone")

        async def look(scraped: Callable[[], Awaitable[Samples]]) -> None:
            monkeypatch.setattr(log, "groups", unreachable)
            await until(scraped, lambda now: now["log_up", labels()] == 0)
            monkeypatch.setattr(log, "groups", groups)
            await until(scraped, lambda now: now["log_up", labels()] == 1)

        await watched(log, "beginning", look)


async def test_records_deleted_before_they_were_read_are_passed_over(tmp_path: Path) -> None:
    from unstable_stream.log.local.log import LocalLog

    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await create_declared_topics(log, load_topics())

        async def look(scraped: Callable[[], Awaitable[Samples]]) -> None:
            await log.append([Record("metrics", "k", b"x", partition=0)])
            await log.delete_before(await log.end_offsets("metrics"))
            await log.append([record_from_event(history()[0])])
            await until(scraped, lambda now: ("run_active", labels(run="run-test")) in now)

        await watched(log, "beginning", look)


async def test_a_taken_port_is_an_error_of_one_line(tmp_path: Path) -> None:
    from unstable_stream.log.local.log import LocalLog

    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(
                ServiceError, match=rf"cannot serve metrics on 127.0.0.1:{port}: Address already"
            ):
                await run_monitor(log, port=port, stop=asyncio.Event())
