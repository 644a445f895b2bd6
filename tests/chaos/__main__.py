"""Do faults to real runs: python -m tests.chaos --faults 1000 --log local|kafka [--seed 0] [--small-disk].

Ends with a table of the faults, and with status 1 if a run did not go on or a proof found something. With
``--small-disk`` the data is on a file system in memory of a few hundred MB (Linux, as root), which is filled
now and then.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from infra.kafka.brokers import KafkaCluster
from tests.chaos.runs import KEY_ENV, do_faults
from tests.conftest import free_port_pair

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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--log", choices=["local", "kafka"], default="local")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small-disk", action="store_true", help="fill the disk too; needs root on Linux")
    parser.add_argument("--only", nargs="*", default=(), help="words in the names of the faults to do")
    arguments = parser.parse_args()
    os.environ[KEY_ENV] = "none"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run's processes end, too
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        data = home / "data"
        data.mkdir()
        if arguments.small_disk:
            stack.enter_context(small_disk(data))
        kafka = None
        if arguments.log == "kafka":
            kafka = stack.enter_context(KafkaCluster(home / "kafka", brokers=3, port=free_port_pair(3)))
        report = asyncio.run(
            do_faults(
                arguments.faults,
                data,
                seed=arguments.seed,
                kafka=kafka,
                small_disk=arguments.small_disk,
                only=arguments.only,
                say=lambda line: print(f"[{time.monotonic() - began:6.0f} s] {line}", flush=True),
            )
        )
    print("\n".join(report.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
