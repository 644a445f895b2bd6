"""Do faults to real runs: python -m tests.chaos --faults 1000 --log local|kafka [--backend ray|inline].

Each run is written down in the results when it was proven; the same command goes on where it was interrupted.
Ends with a table of the faults, and with status 1 if a run did not go on or a proof found something. With
``--small-disk`` the data is on a file system in memory (Linux, as root), which is filled now and then.
"""

import argparse
import asyncio
import contextlib
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.campaign import do_faults
from tests.chaos.runs import KEY_ENV
from tests.chaos.table import lines

_SMALL_DISK_MB = 1500


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[None]:
    """Mount a small file system in memory at ``directory``."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SMALL_DISK_MB}m", "tmpfs", str(directory)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def moment(text: str) -> float:
    """Return the Unix time of a time in ISO 8601."""
    return datetime.datetime.fromisoformat(text).timestamp()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    # Called as the parameters of do_faults().
    parser.add_argument("--faults", dest="wanted", type=int, default=30)
    parser.add_argument("--log", choices=["local", "kafka"], default="local")
    parser.add_argument("--backend", choices=["ray", "inline"], default="ray")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, help="default: chaos-results/LOG-BACKEND")
    parser.add_argument("--until", type=moment, default=float("inf"), help="do no fault after this time")
    parser.add_argument("--updates", type=int, default=60, help="of each run")
    parser.add_argument("--small-disk", action="store_true", help="fill the disk too; needs root on Linux")
    parser.add_argument("--only", nargs="*", default=(), help="words in the names of the faults to do")
    arguments = parser.parse_args()
    arguments.results = arguments.results or Path("chaos-results") / f"{arguments.log}-{arguments.backend}"
    os.environ[KEY_ENV] = "none"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run's processes end, too
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.0f} s] {line}", flush=True)

    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        if arguments.small_disk:
            stack.enter_context(small_disk(work))
        done = asyncio.run(do_faults(**vars(arguments), work=work, say=say))
    print("\n".join(lines(done)))
    return 1 if any(result.failure for result in done) else 0


if __name__ == "__main__":
    sys.exit(main())
