"""Draw restart time and memory of collector, learner and a plug-in's host against the games before, as SVG.

``python -m benchmarks.restart_picture docs/data/restarts/*.json`` prints the picture; the files are what
``benchmarks.collector_restart`` and ``benchmarks.service_restart`` wrote with ``--json``.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from benchmarks.curves import curves


def main() -> None:
    """Draw."""
    arguments = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    arguments.add_argument(
        "files", type=Path, nargs="+", help="results of collector_restart or service_restart"
    )
    seconds: dict[str, list[tuple[float, float]]] = {}
    megabytes: dict[str, list[tuple[float, float]]] = {}
    for file in arguments.parse_args().files:
        content = json.loads(file.read_text(encoding="utf-8"))
        found = content["seconds_and_mb"]
        if content["title"] == "collector_restart":
            found = {"collector": {size: ways["with"] for size, ways in found.items()}}
        for service, sizes in found.items():
            for size, rounds in sizes.items():
                taken, memory = (statistics.median(each) for each in zip(*rounds, strict=True))
                seconds.setdefault(f"{service}: restart, s", []).append((int(size), taken))
                megabytes.setdefault(f"{service}: peak memory, MB", []).append((int(size), memory))
    # Three services beside each other, and the memory of each below its time.
    sys.stdout.write(curves({**seconds, **megabytes}, below="games of the run before", columns=len(seconds)))


if __name__ == "__main__":
    main()
