"""Append to and read from the local log, against bare SQLite doing the same with one plain table.

Run ``python -m benchmarks.log_append``. The bare side stores the same keys, header bytes and values in one
table without offsets, partitions, timestamps, validation or wake-ups, in transactions of the same size, from
the calling thread. Our side spreads the records over ``--partitions`` and awaits each batch on the
event loop; with ``--appenders`` several tasks append at once and share commits. On a busy machine the time
goes by the neighbours: ``--cpu`` counts the processor time of all threads instead.
"""

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import Comparison, compare, parser, report
from unstable_stream.log.local.database import Synchronous
from unstable_stream.log.open import opened_log
from unstable_stream.log.port import Record, TopicSpec

_TOPIC = "trajectories"

_clock = time.perf_counter


def _records(count: int, value_bytes: int, keys: int = 40) -> list[Record]:
    """Records with the headers of real events; the values cannot be compressed away by a zero page."""
    value = bytes(range(256)) * (value_bytes // 256)
    return [
        Record(
            topic=_TOPIC,
            key=f"run-{index % keys}/TicTacToe-v0-train",
            value=value,
            headers={
                "ce_specversion": b"1.0",
                "ce_id": b"%08d-0000-4000-8000-000000000000" % index,
                "ce_type": b"unstable_stream.trajectory.v1",
                "ce_source": b"/unstable_stream/runs/run-%d" % (index % keys),
                "ce_time": b"2025-01-01T00:00:00.000+00:00",
                "ce_dataschema": b"urn:unstable-stream:schema:trajectory.v1",
                "content-type": b"application/json",
            },
            timestamp_ms=1_735_689_600_000 + index,
        )
        for index in range(count)
    ]


def _in_directory(measure: Callable[[Path], float]) -> float:
    directory = Path(tempfile.mkdtemp(prefix="log-append-"))
    try:
        return measure(directory)
    finally:
        shutil.rmtree(directory)


# -- bare SQLite ----------------------------------------------------------------------------------


def _bare_rows(records: list[Record]) -> list[tuple[str, bytes, bytes]]:
    # Header values only: what our side stores of them, names not counted.
    return [(r.key, r.headers["ce_id"] + r.headers["ce_time"], r.value) for r in records]


def _bare_open(directory: Path, synchronous: str) -> sqlite3.Connection:
    connection = sqlite3.connect(directory / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("CREATE TABLE records (key, headers, value)")
    return connection


def _bare_append(
    records: list[Record], batch: int, synchronous: str, directory: Path
) -> tuple[float, sqlite3.Connection]:
    rows = _bare_rows(records)
    connection = _bare_open(directory, synchronous)
    began = _clock()
    for first in range(0, len(rows), batch):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO records VALUES (?, ?, ?)", rows[first : first + batch])
        connection.execute("COMMIT")
    return len(rows) / (_clock() - began), connection


def bare_append(records: list[Record], batch: int, synchronous: str, directory: Path) -> float:
    rate, connection = _bare_append(records, batch, synchronous, directory)
    connection.close()
    return rate


def bare_read(records: list[Record], page: int, directory: Path) -> float:
    _, connection = _bare_append(records, 1000, "NORMAL", directory)
    began = _clock()
    last, count = 0, 0
    while True:
        rows = connection.execute(
            "SELECT rowid, key, headers, value FROM records WHERE rowid > ? ORDER BY rowid LIMIT ?",
            (last, page),
        ).fetchall()
        if not rows:
            break
        last, count = rows[-1][0], count + len(rows)
    seconds = _clock() - began
    connection.close()
    assert count == len(records)
    return count / seconds


# -- ours -----------------------------------------------------------------------------------------


def log_append(
    records: list[Record],
    batch: int,
    synchronous: Synchronous,
    partitions: int,
    appenders: int,
    directory: Path,
) -> float:
    async def measure() -> float:
        async with opened_log("local", directory / "log.sqlite", synchronous=synchronous) as log:
            await log.create_topics([TopicSpec(_TOPIC, partitions)])
            batches = iter([records[first : first + batch] for first in range(0, len(records), batch)])

            async def append() -> None:
                for one in batches:
                    await log.append(one)

            began = _clock()
            await asyncio.gather(*(append() for _ in range(appenders)))
            return len(records) / (_clock() - began)

    return asyncio.run(measure())


def log_read(records: list[Record], page: int, partitions: int, directory: Path) -> float:
    async def measure() -> float:
        async with opened_log("local", directory / "log.sqlite", synchronous="NORMAL") as log:
            await log.create_topics([TopicSpec(_TOPIC, partitions)])
            for first in range(0, len(records), 1000):
                await log.append(records[first : first + 1000])
            consumer = await log.consumer([_TOPIC])
            began = _clock()
            count = 0
            while count < len(records):
                count += len(await consumer.poll(max_records=page))
            return count / (_clock() - began)

    return asyncio.run(measure())


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--partitions", type=int, default=4, help="partitions of the topic")
    arguments.add_argument("--appenders", type=int, default=32, help="tasks in the concurrent rows")
    arguments.add_argument("--scale", type=float, default=1.0, help="multiplies the number of records")
    arguments.add_argument("--cpu", action="store_true", help="count processor time instead of time")
    options = arguments.parse_args()
    if options.cpu:
        global _clock
        _clock = time.process_time
    unit = "records/CPU s" if options.cpu else "records/s"
    results: list[Comparison] = []
    levels: tuple[Synchronous, ...] = ("FULL", "NORMAL")
    for value_bytes in (1024, 4096):
        for synchronous in levels:
            for batch, count, appenders, target in (
                (1, 2_000, 1, None),
                (1, 2_000, options.appenders, 0.5),
                (100, 20_000, 1, 0.85),
                (1000, 20_000, 1, 0.85),
            ):
                records = _records(int(count * options.scale), value_bytes)
                ours = partial(log_append, records, batch, synchronous, options.partitions, appenders)
                bare = partial(bare_append, records, batch, synchronous)
                tasks = f", {appenders} tasks" if appenders > 1 else ""
                results.append(
                    compare(
                        f"append {value_bytes // 1024} KB, batch {batch}, {synchronous}{tasks}",
                        partial(_in_directory, ours),
                        partial(_in_directory, bare),
                        unit=unit,
                        rounds=options.rounds,
                        target=target if value_bytes == 1024 else None,
                    )
                )
        records = _records(int(20_000 * options.scale), value_bytes)
        results += [
            compare(
                f"read {value_bytes // 1024} KB, {page} at once",
                partial(_in_directory, partial(log_read, records, page, options.partitions)),
                partial(_in_directory, partial(bare_read, records, page)),
                unit=unit,
                rounds=options.rounds,
            )
            for page in (500, 5000)
        ]
    report(
        "Local log against bare SQLite", results, options.json, versions={"sqlite": sqlite3.sqlite_version}
    )


if __name__ == "__main__":
    main()
