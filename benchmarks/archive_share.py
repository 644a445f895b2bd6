"""Two archivers of a shared archive against one: the same records, divided by partition.

``python -m benchmarks.archive_share --games 3000``

Games are dealt to eight partitions in turn, which is the traffic of many runs or environments: all
trajectories of one environment of one run would be in one partition, and a second archiver would have only
records of steps.

Each archiver is a process of its own with the share of the partitions that a consumer group would give it.
The time is that from the first batch of any to the last commit of all, without starting the processes. Where
the machine has no more than two cores, both archivers, their threads that write files, and whatever else runs
share them: the ratio is then at most what is left of the second core. ``--cpu`` counts the processor time of
the archiver that took most of it instead, which is what remains where each has cores of its own.

With ``--address delta:s3://bucket/path`` the archives are made there.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks.archive_insert import made_up_records
from benchmarks.harness import compare, parser, report
from unstable_stream.archive import query
from unstable_stream.log.port import StoredRecord

_PARTITIONS = 8
_WORKER = """
import sys, time
from benchmarks.archive_share import records_of
from unstable_stream.archive import ArchiveWriter

address, games, batch, share, of = sys.argv[1], *map(int, sys.argv[2:])
records = records_of(games, share, of)
writer = ArchiveWriter(address, "bench")
print("ready", flush=True)
sys.stdin.readline()
began, cpu = time.time(), time.process_time()
for start in range(0, len(records), batch):
    writer.write(records[start:start + batch])
print(began, time.time(), time.process_time() - cpu, flush=True)
writer.close()
"""


def records_of(games: int, share: int, of: int) -> list[StoredRecord]:
    """Return one of ``of`` equal shares of the records, by partition: each partition has every n-th game."""
    records = made_up_records(games)
    found: list[StoredRecord] = []
    offsets: dict[tuple[str, int], int] = {}
    for number, record in enumerate(records):
        partition = number % _PARTITIONS
        offset = offsets.get((record.topic, partition), 0)
        offsets[record.topic, partition] = offset + 1
        if partition % of == share:
            found.append(msgspec.structs.replace(record, partition=partition, offset=offset))
    return found


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--games", type=int, default=1500)
    arguments.add_argument("--batch", type=int, default=1000, help="records of a commit")
    arguments.add_argument("--cpu", action="store_true", help="count processor time, for a busy machine")
    arguments.add_argument("--address", default="", help="where the archives are made, delta:…")
    options = arguments.parse_args()
    total = len(made_up_records(options.games))
    directory = Path(tempfile.mkdtemp(prefix="archive-share-"))
    made = 0

    def rate(archivers: int) -> float:
        nonlocal made
        made += 1
        base = options.address or f"delta:{directory}"
        address = f"{base}/{made}"
        command = [sys.executable, "-c", _WORKER, address, str(options.games), str(options.batch)]
        processes = [
            subprocess.Popen(
                [*command, str(share), str(archivers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for share in range(archivers)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        spans = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            spans.append([float(moment) for moment in process.stdout.readline().split()])
            assert process.wait() == 0
        assert query(address, "SELECT count(*) FROM events").rows == [(total,)]
        if options.cpu:
            return total / max(cpu for _, _, cpu in spans)
        return total / (max(end for _, end, _ in spans) - min(began for began, _, _ in spans))

    try:
        comparison = compare(
            "two archivers against one",
            lambda: rate(2),
            lambda: rate(1),
            unit="records/CPU s" if options.cpu else "records/s",
            rounds=options.rounds,
        )
    finally:
        shutil.rmtree(directory)
    report(f"shared archive: {total:,} records", [comparison], options.json)


if __name__ == "__main__":
    main()
