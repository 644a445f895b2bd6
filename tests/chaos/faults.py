"""What is done to a run: processes killed or stopped, the launcher and a broker killed, the disk filled."""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from infra.kafka.brokers import KafkaCluster
from tests.whole_run.processes import LaunchedRun

__all__ = ["LAUNCHER_DIED", "Fault", "faults_for"]

PROCESSES = (
    "service learner",
    "service collector",
    "service processors",
    "service archiver",
    "ray::EngineActor",
    "ray::RolloutActor",
    "ray::LearnerActor",
)
_STOPPED_S = (2.0, 12.0)
"""How long a process is stopped: within and beyond the five seconds of a group member's session."""
_FULL_S = 4.0
LAUNCHER_DIED = "kill -9 launcher"


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    weight: float
    inject: Callable[[LaunchedRun, random.Random], Awaitable[None]]
    """Returns when the fault is over, e.g. the process goes on or the disk has space again."""


def faults_for(kafka: KafkaCluster | None, small_disk: Path | None) -> Sequence[Fault]:
    """Return the kinds of faults that can be made here.

    Args:
        kafka: the brokers of the run's log, three of them; ``None``: the local log.
        small_disk: a directory on a small file system that holds the run's data, if there is one.
    """
    faults = [Fault(f"kill -9 {name.split()[-1]}", 1.0, _killing(name)) for name in PROCESSES]
    faults += [Fault(f"stop {name.split()[-1]}", 0.4, _stopping(name)) for name in PROCESSES]
    faults.append(Fault(LAUNCHER_DIED, 1.0, _kill_launcher))
    if kafka is not None:
        faults.append(Fault("kill -9 broker", 1.0, _killing_broker(kafka)))
    if small_disk is not None:
        faults.append(Fault("full disk", 0.7, _filling(small_disk)))
    return faults


def _killing(words: str) -> Callable[[LaunchedRun, random.Random], Awaitable[None]]:
    async def kill(run: LaunchedRun, _: random.Random) -> None:
        await run.kill(words)

    return kill


def _stopping(words: str) -> Callable[[LaunchedRun, random.Random], Awaitable[None]]:
    async def stop(run: LaunchedRun, rng: random.Random) -> None:
        process = await run.find(words)
        process.suspend()
        try:
            await asyncio.sleep(rng.uniform(*_STOPPED_S))  # the fault itself takes this time
        finally:
            if process.is_running():
                process.resume()

    return stop


async def _kill_launcher(run: LaunchedRun, _: random.Random) -> None:
    run.look()
    run.popen.kill()
    run.popen.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, list(run.seen.values()), timeout=120)
    assert alive == [], f"left behind by a killed launcher: {alive}"


def _killing_broker(cluster: KafkaCluster) -> Callable[[LaunchedRun, random.Random], Awaitable[None]]:
    async def kill(_: LaunchedRun, rng: random.Random) -> None:
        node = rng.randrange(cluster.brokers) + 1
        await asyncio.to_thread(cluster.stop, node, signal.SIGKILL)
        await asyncio.to_thread(cluster.start, node)

    return kill


def _filling(directory: Path) -> Callable[[LaunchedRun, random.Random], Awaitable[None]]:
    async def fill(run: LaunchedRun, _: random.Random) -> None:
        ballast = directory / "ballast"
        try:
            with ballast.open("wb") as file:
                for size in (1 << 20, 1 << 12):
                    _write_until_full(file.fileno(), size)
            await asyncio.sleep(_FULL_S)
        finally:
            ballast.unlink(missing_ok=True)
        assert shutil.disk_usage(directory).free > 0

    return fill


def _write_until_full(handle: int, size: int) -> None:
    block = bytes(size)
    try:
        while os.write(handle, block):
            pass
    except OSError:
        return  # no space left: as wanted
