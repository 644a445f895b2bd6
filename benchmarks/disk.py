"""What a quickstart leaves on disk, and the time to write it, against the same records not compressed.

``python -m benchmarks.disk`` plays ``--updates`` of a quickstart, or takes the data directory of one
(``--data``), and stores its records again, both ways: in a log, as many at once as rollout workers append,
and in an archive, as many at once as an archiver that commits each second. The uncompressed log is one plain
table of the same keys, headers and values; the uncompressed archive has the same tables, with each column's
compression left to DuckDB. A ratio of disk of 4 means a quarter of the bytes. Readers pay for the log's
compression too, at each reading: ``read``.
"""

import asyncio
import contextlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.harness import Comparison, parser, report
from unstable_stream.archive import ArchiveWriter
from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.store import WritableArchive
from unstable_stream.archive.tables import TABLES
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Record, StoredRecord, TopicSpec

_COMPRESSED = " USING COMPRESSION zstd"


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def _recorded(path: Path) -> list[StoredRecord]:
    async with LocalLog.open(path) as log:
        consumer = await log.consumer(list(await log.topics()))
        records: list[StoredRecord] = []
        while found := await consumer.poll(max_records=5000, timeout_s=0):
            records += found
    # As they were appended, as nearly as times tell, and in order within each partition.
    latest: dict[tuple[str, int], int] = {}
    moments = []
    for record in records:
        place = (record.topic, record.partition)
        latest[place] = max(latest.get(place, 0), record.timestamp_ms)
        moments.append(latest[place])
    return [record for _, record in sorted(zip(moments, records, strict=True), key=lambda pair: pair[0])]


def plain_log(records: list[StoredRecord], batch: int, directory: Path) -> tuple[float, float, float]:
    """Store and read the records in a plain table; return bytes, and seconds of both."""
    encode = msgspec.msgpack.encode
    path = directory / "log.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE records (key, headers, value)")
        began = time.process_time()
        for first in range(0, len(records), batch):
            rows = [
                (r.key, encode([r.headers["ce_id"], r.headers["ce_time"]]), r.value)
                for r in records[first : first + batch]
            ]
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")
        written = time.process_time()
        assert len(connection.execute("SELECT * FROM records").fetchall()) == len(records)
        done = time.process_time()
    return _bytes(directory), written - began, done - written


def local_log(records: list[StoredRecord], batch: int, directory: Path) -> tuple[float, float, float]:
    """Store and read the records in a local log; return bytes, and seconds of both."""
    fresh = [Record(r.topic, r.key, r.value, r.headers, r.timestamp_ms) for r in records]

    async def measure() -> tuple[float, float]:
        async with LocalLog.open(directory / "log.sqlite") as log:
            await log.create_topics([TopicSpec(topic, 1) for topic in {r.topic for r in records}])
            began = time.process_time()
            for first in range(0, len(fresh), batch):
                await log.append(fresh[first : first + batch])
            written = time.process_time()
            consumer = await log.consumer(list(await log.topics()))
            count = 0
            while found := await consumer.poll(max_records=5000, timeout_s=0):
                count += len(found)
            assert count == len(records)
            return written - began, time.process_time() - written

    seconds = asyncio.run(measure())
    return _bytes(directory), *seconds


def archive(records: list[StoredRecord], batch: int, plain: bool, directory: Path) -> tuple[float, float]:
    """Store the records in an archive; return bytes and seconds."""
    path = directory / "archive.duckdb"
    ArchiveWriter(path).close()
    if plain:
        with contextlib.closing(WritableArchive(path)) as file, file.held() as connection:
            for table in (EVENTS, *TABLES):
                connection.execute(f'DROP TABLE "{table.name}"')
                connection.execute(table.create_sql().replace(_COMPRESSED, ""))
    began = time.process_time()
    with ArchiveWriter(path) as writer:
        for first in range(0, len(records), batch):
            writer.write(records[first : first + batch])
    return _bytes(directory), time.process_time() - began


def _fresh(measure: Callable[[Path], tuple[float, ...]]) -> tuple[float, ...]:
    with tempfile.TemporaryDirectory(prefix="disk-") as directory:
        return measure(Path(directory))


def main() -> None:
    """Measure and report."""
    arguments = parser(str(__doc__).splitlines()[0])
    arguments.set_defaults(rounds=3)
    arguments.add_argument("--updates", type=int, default=5, help="learner updates of the quickstart")
    arguments.add_argument("--data", type=Path, default=None, help="the data directory of one that is there")
    arguments.add_argument("--append", type=int, default=8, help="records of an append")
    arguments.add_argument("--commit", type=int, default=400, help="records of a commit of the archive")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="disk-quickstart-") as made:
        data = options.data or Path(made)
        if options.data is None:
            subprocess.run(
                [sys.executable, "-c", "from unstable_stream.ui.cli import main; main()", "quickstart",
                 "--quiet", "--updates", str(options.updates), "--data", str(data)],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        copy = Path(shutil.copy(data / "log.sqlite", Path(made) / "copy.sqlite"))
        records = asyncio.run(_recorded(copy))
    sides = {
        "log": (
            lambda place: local_log(records, options.append, place),
            lambda place: plain_log(records, options.append, place),
        ),
        "archive": (
            lambda place: archive(records, options.commit, False, place),
            lambda place: archive(records, options.commit, True, place),
        ),
    }
    results = []
    for name, (ours, theirs) in sides.items():
        rounds = [(_fresh(ours), _fresh(theirs)) for _ in range(options.rounds)]
        for place, (what, unit, size) in enumerate(
            (("disk", "records/MB", 1e6), ("write", "records/CPU s", 1), ("read", "records/CPU s", 1))
        ):
            if place < len(rounds[0][0]):
                own, other = (
                    tuple(len(records) * size / one[side][place] for one in rounds) for side in (0, 1)
                )
                results.append(Comparison(f"{name}, {what}", unit, own, other))
    size = sum(len(record.value) for record in records) / len(records)
    report(f"Disk: {len(records):,} records of {size:,.0f} bytes", results, options.json)


if __name__ == "__main__":
    main()
