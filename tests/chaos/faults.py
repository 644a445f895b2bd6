"""What is done to a run.

Processes are killed at any moment and at numbered commit steps, or stopped; the launcher and a broker are
killed; the disk is filled; environments and engines misbehave.
"""

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.kafka.brokers import KafkaCluster
from tests.processes import send
from tests.whole_run.processes import RAY_AGENTS, History, LaunchedRun
from unstable_stream.events import GameAbandoned

CONTROL_ENV = "CHAOS_CONTROL"
"""The environment variable with the directory of the orders."""
_INSIDE = Path(__file__).resolve().parent / "inside"
_CRASH_S = 60.0
Inject = Callable[[LaunchedRun, random.Random], Awaitable[str | None]]

PROCESSES = (
    "service learner",
    "service collector",
    "service processors",
    "service archiver",
    "ray::EngineActor",
    "ray::RolloutActor",
    "ray::LearnerActor",
)
COMMITTING = tuple(name for name in PROCESSES if name != "ray::EngineActor")
"""Those that write something to keep."""
_MOST_STEPS = 25
_STOPPED_S = (2.0, 12.0)
"""How long a process is stopped: within and beyond the five seconds of a group member's session."""
_FULL_S = 4.0
_MISBEHAVED_S = (2.0, 8.0)
LAUNCHER_DIED = "kill -9 launcher"
NEVER_RETURNS = "environment: never returns"
HUNG = "its environment did not return within"
"""What is said and recorded of a game whose environment hangs."""
MISBEHAVIOUR = {
    "environment": ("raises", "hangs"),
    "engine": ("hangs", "wrong tokens", "not finite", "cut short", "unknown tokens"),
}


class Orders:
    """Gives orders to every process started from here on with this process's environment: by files in a
    directory, see ``inside/sitecustomize.py``.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        os.environ[CONTROL_ENV] = str(directory)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            (str(_INSIDE), *filter(None, (os.environ.get("PYTHONPATH"),)))
        )

    async def crash(self, words: str, number: int, is_over: Callable[[], bool]) -> str:
        """Have the process with the words in its command line die at its n-th step; return the step's name.

        Empty if it did not come to so many steps in a minute, or before all was over.
        """
        crashed = self._directory / "crashed"
        self._write("crash", f"{words} {number}")
        deadline = time.monotonic() + _CRASH_S
        while not crashed.exists():
            if time.monotonic() > deadline or is_over():
                (self._directory / "crash").unlink(missing_ok=True)
                if not crashed.exists():
                    return ""
            await asyncio.sleep(0.02)
        step = crashed.read_text()
        for path in (crashed, *self._directory.glob(".crashed-*")):
            path.unlink()
        return step

    def hang(self) -> None:
        """Have the next step of an environment never return."""
        self._write("hang", "now")

    def misbehave(self, what: str, kind: str, seconds: float) -> None:
        """Have the environments or the engines misbehave in a way for some seconds from now."""
        self._write(what, f"{kind} {time.time() + seconds}")

    def withdraw(self) -> None:
        """End all misbehaviour: what is started from here on is a command like any user's."""
        for path in self._directory.iterdir():
            path.unlink()

    def _write(self, name: str, text: str) -> None:
        staging = self._directory / f".{name}"
        staging.write_text(text)
        staging.rename(self._directory / name)


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    weight: float
    inject: Inject
    """Returns when the fault is done, e.g. the process goes on or the disk has space again: the commit step
    at which it was done, if it was at one; ``None``: it could not be done. What misbehaves does so for some
    seconds more, with the next faults."""
    may_end: bool = False
    """Whether the run may end with it, saying so, to be resumed."""


def faults_for(
    orders: Orders, kafka: KafkaCluster | None, small_disk: Path | None, *, inline: bool
) -> Sequence[Fault]:
    """Return the kinds of faults that can be made here.

    Args:
        orders: to the processes of the run.
        kafka: the brokers of the run's log, three of them; ``None``: the local log.
        small_disk: a directory on a small file system that holds the run's data, if there is one.
        inline: the run is a single process.
    """
    faults = [Fault(LAUNCHER_DIED, 1.0, _kill_launcher)]
    if inline:
        faults.append(Fault("stop launcher", 0.2, partial(_stop, "")))
        faults.append(Fault("kill -9 at a commit step of the run", 4.0, partial(_crash, orders, "")))
    else:
        faults += [Fault(f"kill -9 {_short(name)}", 1.0, partial(_kill, name)) for name in PROCESSES]
        faults += [Fault(f"stop {_short(name)}", 0.4, partial(_stop, name)) for name in PROCESSES]
        faults += [
            Fault(f"kill -9 at a commit step of {_short(name)}", 1.0, partial(_crash, orders, name))
            for name in COMMITTING
        ]
    for what, kinds in MISBEHAVIOUR.items():
        faults += [Fault(f"{what}: {kind}", 0.2, partial(_misbehave, orders, what, kind)) for kind in kinds]
    faults.append(Fault(NEVER_RETURNS, 0.3, partial(_hang, orders), may_end=inline))
    if kafka is not None:
        faults.append(Fault("kill -9 broker", 1.0, partial(_kill_broker, kafka)))
    if small_disk is not None:
        faults.append(Fault("full disk", 0.7, partial(_fill, small_disk), may_end=True))
    return faults


def _short(name: str) -> str:
    return name.split()[-1]


async def _kill(words: str, run: LaunchedRun, _: random.Random) -> str:
    await run.kill(words)
    return ""


async def _crash(orders: Orders, words: str, run: LaunchedRun, rng: random.Random) -> str | None:
    def is_over() -> bool:
        return run.popen.poll() is not None

    step = await orders.crash(words, rng.randrange(1, _MOST_STEPS + 1), is_over)
    if step and not words:
        await asyncio.to_thread(run.popen.wait)
    return step or None


async def _misbehave(orders: Orders, what: str, kind: str, _: LaunchedRun, rng: random.Random) -> str:
    orders.misbehave(what, kind, rng.uniform(*_MISBEHAVED_S))
    return ""


async def _hang(orders: Orders, run: LaunchedRun, _: random.Random) -> str:
    def hung(seen: History) -> set[str]:
        return {event.game_id for event in seen.of(GameAbandoned) if HUNG in event.reason}

    await run.history.read()
    before = hung(run.history)
    orders.hang()
    await run.until("the game that hangs is abandoned", lambda seen: hung(seen) > before)
    return ""


async def _stop(words: str, run: LaunchedRun, rng: random.Random) -> str:
    process = await run.find(words) if words else run.launcher
    send(process, signal.SIGSTOP)
    try:
        await asyncio.sleep(rng.uniform(*_STOPPED_S))  # the fault itself takes this time
    finally:
        send(process, signal.SIGCONT)
    return ""


async def _kill_launcher(run: LaunchedRun, _: random.Random) -> str:
    run.look()
    run.popen.kill()
    run.popen.wait()
    alive = await asyncio.to_thread(run.left_behind, *RAY_AGENTS)
    assert alive == [], f"left behind by a killed launcher: {alive}"
    return ""


async def _kill_broker(cluster: KafkaCluster, _: LaunchedRun, rng: random.Random) -> str:
    node = rng.randrange(cluster.brokers) + 1
    await asyncio.to_thread(cluster.stop, node, signal.SIGKILL)
    await asyncio.to_thread(cluster.start, node)
    return ""


async def _fill(directory: Path, run: LaunchedRun, _: random.Random) -> str:
    ballast = directory / "ballast"
    try:
        with ballast.open("wb") as file:
            for size in (1 << 20, 1 << 12):
                _write_until_full(file.fileno(), size)
        await asyncio.sleep(_FULL_S)
    finally:
        ballast.unlink(missing_ok=True)
    assert shutil.disk_usage(directory).free > 0
    return ""


def _write_until_full(handle: int, size: int) -> None:
    with suppress(OSError):  # no space left: as wanted
        while os.write(handle, bytes(size)):
            pass
