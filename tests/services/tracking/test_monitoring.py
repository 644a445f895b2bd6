"""What is served to Prometheus is what the log holds, on every log, also while it grows."""

import asyncio
import json
import re
import secrets
import socket
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.builders import made
from tests.history.proofs.test_audit import checkpoint, history, update
from unstable_stream.errors import LogUnavailableError, ServiceError
from unstable_stream.events import Event, Metrics, RecordRejected, event_id
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import EventLog, Record, StoredRecord, TopicPartition
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topic_drift import create_declared_topics
from unstable_stream.log.topics import load_topics
from unstable_stream.services.tracking.prometheus import MonitorState, exposition, run_monitor
from unstable_stream.services.tracking.service_reports import ARCHIVER, LAUNCHER, archived_values

pytestmark = pytest.mark.longer

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "monitoring.md").read_text(encoding="utf-8")
PROMETHEUS = ROOT / "infra" / "prometheus"
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


def of_run(events: Iterable[Event], run: str, **changes: Any) -> list[Record]:
    """The records of these events, of another run."""
    return [record_from_event(msgspec.structs.replace(event, run_id=run, **changes)) for event in events]


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
    of_the_run, of_none = (
        made(RecordRejected, run_id=run, consumer=consumer)
        for run, consumer in (("run-test", "reward-processor/run-test"), ("", "archiver"))
    )
    state = folded(of_the_run, of_none, of_none)
    assert state.values["dead_letters"] == {
        ("run-test", "reward-processor", "steps"): 1,
        ("", "archiver", "steps"): 2,
    }


def test_what_services_say_of_themselves_is_kept_until_the_run_ends() -> None:
    said = {"services/learner/up": 1.0, "services/learner/restarts": 2.0}
    reports = ((LAUNCHER, said), (ARCHIVER, archived_values(12)), ("engine-0", {"tok_s": 3.5}))
    state = folded(*(made(Metrics, source=source, values=values) for source, values in reports))
    key = ("run-test", "learner")
    assert (state.values["service_up"][key], state.values["service_restarts"][key]) == (1.0, 2.0)
    assert state.values["archive_records"] == {("run-test",): 12.0}
    assert state.values["value"] == {("run-test", "engine-0", "tok_s"): 3.5}
    state.apply(stored(history()[-1]))
    assert (state.values["service_up"][key], state.values["service_restarts"][key]) == (0.0, 2.0)
    assert state.values["value"] == {}


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
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]*)\|", PAGE, re.MULTILINE)
    documented = {name: set(re.findall(r"\w+", labels)) for name, labels in rows}
    assert documented == served()


def served() -> dict[str, set[str]]:
    """The labels of each served metric."""
    labels: dict[str, set[str]] = {}
    for family in exposition(MonitorState(), [], {}, log_up=True):
        name = family.name.removeprefix("unstable_stream_") + "_total" * (family.type == "counter")
        labels[name] = set(getattr(family, "_labelnames"))  # noqa: B009
    return labels


def test_dashboard_and_alerts_ask_for_what_exists_and_the_alerts_are_documented() -> None:
    dashboard = json.loads((PROMETHEUS / "dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked) > 10
    rules = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text(encoding="utf-8"))
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expression in (*asked, *alerts):
        names = set(re.findall(r"unstable_stream_(\w+)", expression))
        assert names, expression
        assert names <= served().keys(), expression
        assert expression.count("(") == expression.count(")")
    assert [expression for expression in alerts if f"| `{expression}` |" not in PAGE] == []
    scraping = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text(encoding="utf-8"))
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
    records = of_run(history()[:-1], run, occurred_at_ms=begun_ms)
    await any_log.append(records)
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
        await any_log.append(of_run([update(3, ["a", "b"], []), checkpoint(3)], run))
        samples = await until(scraped, lambda now: now["learner_update", labels(run=run)] == 3)
        assert samples["steps_trained_total", labels(run=run)] == 9
        # Somebody writes to runs: the group that reads it falls behind by as many records.
        lag_before = samples["consumer_lag", where]
        await any_log.append(records[:1] * 5)
        await until(scraped, lambda now: now["consumer_lag", where] >= lag_before + 5)
        await any_log.append(of_run(history()[-1:], run, event_id=event_id(run, "run-finished", 0)))
        samples = await until(scraped, lambda now: now["run_active", labels(run=run)] == 0)
        await until(scraped, lambda now: ("consumer_lag", where) not in now)

    await watched(any_log, begun_ms, look)


async def test_from_the_end_it_counts_only_what_comes_but_knows_the_runs(any_log: EventLog) -> None:
    run = f"monitored-{secrets.token_hex(4)}"
    await create_declared_topics(any_log, load_topics())
    await any_log.append(of_run(history()[:-1], run))

    async def look(scraped: Callable[[], Awaitable[Samples]]) -> None:
        samples = await scraped()
        assert samples["run_active", labels(run=run)] == 1
        assert ("steps_trained_total", labels(run=run)) not in samples
        await any_log.append(of_run([update(3, ["a", "b"], [])], run))
        samples = await until(scraped, lambda now: ("learner_update", labels(run=run)) in now)
        assert samples["steps_trained_total", labels(run=run)] == 2

    await watched(any_log, "end", look)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as opened:
        yield opened


async def test_it_waits_for_the_first_run_to_make_the_topics(log: LocalLog) -> None:
    async def look(scraped: Callable[[], Awaitable[Samples]]) -> None:
        assert {name for name, _ in await scraped()} == {"log_up"}
        first, *others = of_run(history(), "run-test")
        await log.create_topics([load_topics()["runs"]])
        await log.append([first])
        await until(scraped, lambda now: ("run_active", labels(run="run-test")) in now)
        await create_declared_topics(log, load_topics())
        await log.append(others)
        samples = await until(scraped, lambda now: now["run_active", labels(run="run-test")] == 0)
        assert samples["events_total", labels(run="run-test", topic="runs", type="run-started")] == 1

    await watched(log, "beginning", look)


async def test_it_goes_on_after_the_log_was_away_and_records_were_deleted_unread(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_declared_topics(log, load_topics())

    async def unreachable() -> list[str]:
        raise LogUnavailableError("gone")

    async def look(scraped: Callable[[], Awaitable[Samples]]) -> None:
        with monkeypatch.context() as away:
            away.setattr(log, "groups", unreachable)
            await until(scraped, lambda now: now["log_up", labels()] == 0)
        await until(scraped, lambda now: now["log_up", labels()] == 1)
        await log.append([Record("metrics", "k", b"x", partition=0)])
        await log.delete_before(await log.end_offsets("metrics"))
        await log.append(of_run(history()[:1], "run-test"))
        await until(scraped, lambda now: ("run_active", labels(run="run-test")) in now)

    await watched(log, "beginning", look)


async def test_a_taken_port_is_an_error_of_one_line(log: LocalLog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=rf"cannot serve metrics on 127.0.0.1:{port}: Address already"):
            await run_monitor(log, port=port, stop=asyncio.Event())
