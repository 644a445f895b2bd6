"""Start of the archiver against the number of archived events: seconds and memory.

``python -m benchmarks.archive_restart --events 100000 1000000 10000000``

The archives are made in DuckDB alone, of events with ids and without bodies, since starting reads no bodies.
A process of its own then opens the writer, as the archiver does: once without the files of known ids, as
after an upgrade, and once with them, as at every restart. It also recognises a batch of 7,000 ids.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb

from benchmarks.harness import parser

_FILL = """
INSERT INTO archive.events BY NAME
SELECT 'metrics' AS topic, 0 AS "partition", i AS "offset", 'metrics' AS type, uuid()::VARCHAR AS event_id,
    'bench' AS run_id, '' AS key, i AS timestamp_ms, '{}' AS value, 'bench' AS log_id, i AS record_number
FROM range(?) AS t(i)
"""
_STARTED = """
import json, resource, sys, time
from unstable_stream.archive import ArchiveWriter
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
writer = ArchiveWriter(sys.argv[1], "bench")
seconds = time.perf_counter() - began
ids = [f"unknown-{i}" for i in range(7000)]
writer._unseen(ids[:1])  # loads libraries
began = time.perf_counter()
assert all(writer._unseen(ids))
lookup = time.perf_counter() - began
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
writer.close()
print(json.dumps({"start_s": seconds, "lookup_ms": lookup * 1000, "grown_mb": grown / 1024}))
"""


def _start(path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _STARTED, str(path)], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure and print."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--events", type=int, nargs="+", default=[100_000, 1_000_000])
    options = arguments.parse_args()
    print(f"{'events':>12}  {'files':<6} {'start, s':>9} {'7,000 ids, ms':>14} {'memory, MB':>11}")
    with tempfile.TemporaryDirectory(prefix="archive-restart-") as directory:
        for events in options.events:
            path = Path(directory) / f"{events}.duckdb"
            _fill(path, events)
            for files in ("none", "there"):
                found = _start(path)
                print(
                    f"{events:>12,}  {files:<6} {found['start_s']:>9.2f} {found['lookup_ms']:>14.1f} "
                    f"{found['grown_mb']:>11.0f}"
                )


def _fill(path: Path, events: int) -> None:
    from unstable_stream.archive import ArchiveWriter

    ArchiveWriter(path, "bench").close()
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{path}' AS archive (ROW_GROUP_SIZE 20480)")
        connection.execute(_FILL, [events])
        connection.execute("UPDATE archive.schema_version SET next_record = ?", [events])
        connection.execute("INSERT INTO archive.positions VALUES ('bench', 'metrics', 0, ?, '{}')", [events])


if __name__ == "__main__":
    main()
