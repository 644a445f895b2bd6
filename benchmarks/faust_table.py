"""What a Faust Table loses at restarts: an app that counts events in Tables is killed, restarted, rebalanced.

Run ``python -m benchmarks.faust_table``; it starts a Kafka broker on loopback, or uses ``--kafka host:port``.
Not a race: it is why no state of ours lives in a Table (docs/decisions/0005). Two Tables are kept, as an
application would: how often each event was seen, and a running total for each of 100 keys. What they say in
the end is read from their changelogs and compared with what was sent.
"""

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
from rich.console import Console
from rich.table import Table

from benchmarks.harness import kafka_broker
from infra.kafka.brokers import why_unavailable

PARTITIONS = 4
KEYS = 100
DONE_WITHIN_S = 90.0
"""Workers that have not committed all events by then have stopped working."""
SETTLED_S = 5.0
"""Then the changelogs are complete when they have not grown for this long."""


def worker(bootstrap: str, app_id: str, data: str) -> None:
    """Count events; ends with the process."""
    import faust

    app = faust.App(
        app_id,
        broker=f"kafka://{bootstrap}",
        topic_partitions=PARTITIONS,
        broker_session_timeout=6.0,
        broker_heartbeat_interval=2.0,
        web_enabled=False,
        datadir=data,
    )
    seen = app.Table("seen", default=int, partitions=PARTITIONS)
    totals = app.Table("totals", default=int, partitions=PARTITIONS)

    events = app.topic(f"{app_id}-events", key_type=str, value_type=str, value_serializer="raw")

    @app.agent(events)  # type: ignore[untyped-decorator]  # Faust is not typed here
    async def count(stream: Any) -> None:
        async for key, event in stream.items():
            seen[event] += 1
            totals[key] += 1

    faust.Worker(app, loglevel="error").execute_from_commandline()


@dataclass(frozen=True)
class Found:
    """What the Tables say after a scenario."""

    sent: int
    pending: int
    """Events that Faust had not committed in the end: it has stalled."""
    missing: int
    """Events that are in no Table, pending ones among them."""
    repeated: int
    """Times an event was counted again."""
    total: int
    """Sum of the running totals."""

    @property
    def forgotten(self) -> int:
        """Counts that the running totals have lost: an older value was gone on from."""
        return self.sent - self.missing + self.repeated - self.total


class Scenario:
    """One app, its topics and its worker processes."""

    def __init__(self, bootstrap: str, name: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.app_id = f"faust-table-{name.replace(' ', '-')}-{secrets.token_hex(3)}"
        self._directory = directory
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._starts = Counter[str]()
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
        new = confluent_kafka.admin.NewTopic(f"{self.app_id}-events", PARTITIONS, 1)
        for made in admin.create_topics([new]).values():
            made.result()
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def start(self, name: str) -> None:
        """Start a worker; one that was there before finds its files again."""
        data = self._directory / f"{self.app_id}-{name}"
        data.mkdir(exist_ok=True)
        with (data / "output").open("ab") as output:
            self._workers[name] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.faust_table",
                    "worker",
                    self.bootstrap,
                    self.app_id,
                    str(data),
                ],
                stdout=output,
                stderr=output,
            )

    def end(self, name: str, number: signal.Signals) -> None:
        """Signal a worker and wait for its end."""
        process = self._workers.pop(name)
        process.send_signal(number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End what still runs."""
        for name in list(self._workers):
            self.end(name, signal.SIGKILL)

    def send(self, first: int, count: int, over_s: float) -> None:
        """Send events evenly over a time."""
        began = time.monotonic()
        for number in range(count):
            event = first + number
            self._producer.produce(f"{self.app_id}-events", str(event), f"key-{event % KEYS}")
            due = began + over_s * number / count
            if due > time.monotonic():
                self._producer.poll(due - time.monotonic())
        self._producer.flush()

    def found(self, sent: int) -> Found:
        """Wait until nothing more is counted and read the Tables."""
        tables = {name: Counter[str]() for name in ("seen", "totals")}
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"{self.app_id}-check",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        topics = {f"{self.app_id}-{name}-changelog": table for name, table in tables.items()}
        pending = self._pending(consumer)
        consumer.assign([confluent_kafka.TopicPartition(t, p, 0) for t in topics for p in range(PARTITIONS)])
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < SETTLED_S:
            for message in consumer.consume(5000, 0.5):
                if message.error() is None:
                    value = message.value()
                    topics[message.topic()][json.loads(message.key())] = json.loads(value) if value else 0
                    quiet_since = time.monotonic()
        consumer.close()
        seen = tables["seen"]
        return Found(
            sent=sent,
            pending=pending,
            missing=sum(seen[str(event)] == 0 for event in range(sent)),
            repeated=sum(times - 1 for times in seen.values() if times > 1),
            total=sum(tables["totals"].values()),
        )

    def _pending(self, consumer: confluent_kafka.Consumer) -> int:
        """Wait until the app has committed all events; return how many it has not."""
        group = confluent_kafka.ConsumerGroupTopicPartitions(self.app_id)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": self.bootstrap})
        deadline = time.monotonic() + DONE_WITHIN_S
        while True:
            found = admin.list_consumer_group_offsets([group])[self.app_id].result().topic_partitions
            committed = {at.partition: at.offset for at in found if at.topic == f"{self.app_id}-events"}
            behind = 0
            for number in range(PARTITIONS):
                at = confluent_kafka.TopicPartition(f"{self.app_id}-events", number)
                behind += consumer.get_watermark_offsets(at)[1] - max(0, committed.get(number, 0))
            if behind == 0 or time.monotonic() > deadline:
                return behind
            time.sleep(0.5)


def steady(scenario: Scenario, part: Callable[[], None]) -> None:
    """Nothing happens."""
    scenario.start("one")
    for _ in range(4):
        part()


def restarts(number: signal.Signals) -> Callable[[Scenario, Callable[[], None]], None]:
    """A single worker is ended and started again, three times, while events come in."""

    def play(scenario: Scenario, part: Callable[[], None]) -> None:
        scenario.start("one")
        part()
        for _ in range(3):
            scenario.end("one", number)
            scenario.start("one")
            part()

    return play


def rebalances(number: signal.Signals) -> Callable[[Scenario, Callable[[], None]], None]:
    """A second worker comes, and goes, and comes again."""

    def play(scenario: Scenario, part: Callable[[], None]) -> None:
        scenario.start("one")
        part()
        scenario.start("two")
        part()
        scenario.end("two", number)
        part()
        scenario.start("two")
        part()

    return play


SCENARIOS = {
    "steady": steady,
    "restart SIGTERM": restarts(signal.SIGTERM),
    "restart kill -9": restarts(signal.SIGKILL),
    "rebalance SIGTERM": rebalances(signal.SIGTERM),
    "rebalance kill -9": rebalances(signal.SIGKILL),
}


def measure(bootstrap: str, name: str, events: int, part_s: float, directory: Path) -> Found:
    """Play one scenario and count."""
    scenario = Scenario(bootstrap, name, directory)
    sent = 0

    def part() -> None:
        nonlocal sent
        scenario.send(sent, events // 4, part_s)
        sent += events // 4

    try:
        SCENARIOS[name](scenario, part)
        return scenario.found(sent)
    finally:
        scenario.close()


def main() -> None:
    """Measure and report."""
    if sys.argv[1:2] == ["worker"]:
        worker(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--kafka", default=os.environ.get("UNSTABLE_STREAM_TEST_KAFKA"), help="HOST:PORT")
    parser.add_argument("--events", type=int, default=10_000, help="in each scenario")
    parser.add_argument(
        "--part-s", type=float, default=5.0, help="seconds over which a quarter of them is sent"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=sorted(SCENARIOS), action="append")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    reason = why_unavailable()
    if options.kafka is None and reason is not None:
        print(f"not measured: {reason}")
        return
    table = Table("scenario", "sent", "pending", "missing", "repeated", "forgotten", title="Faust Tables")
    results = []
    with tempfile.TemporaryDirectory() as directory, kafka_broker(options.kafka) as bootstrap:
        for name in options.only or SCENARIOS:
            for _ in range(options.rounds):
                found = measure(bootstrap, name, options.events, options.part_s, Path(directory))
                results.append({"scenario": name, "forgotten": found.forgotten} | asdict(found))
                counts = (found.sent, found.pending, found.missing, found.repeated, found.forgotten)
                table.add_row(name, *map(str, counts))
    Console().print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
