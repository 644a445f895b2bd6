"""Kill -9 at any time: what was acknowledged is there, and nothing is there by halves."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.log.harness import DEADLINE_S, FOREVER_S, read, records
from tests.log.local_process import BATCH
from unstable_stream.log.local.groups import ProcessIdentity, current_process, is_alive
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import TopicPartition, TopicSpec

pytestmark = pytest.mark.longer

Process: TypeAlias = asyncio.subprocess.Process
Start: TypeAlias = Callable[..., Awaitable[Process]]

AT = TopicPartition("t", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
async def start(path: Path) -> AsyncIterator[Start]:
    """Starts a command of ``local_process`` on the log; what still runs at the end is killed."""
    started: list[Process] = []

    async def start(command: str, argument: str) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.log.local_process", command, str(path), "t", argument),
            cwd=Path(__file__).parents[2],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        await kill(process)
        if process.stdin is not None:
            process.stdin.close()


async def line(process: Process) -> str:
    assert process.stdout is not None
    said = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
    assert said, "the process ended"
    return said.decode().strip()


async def kill(process: Process) -> list[str]:
    """Kill -9; return the lines not read yet."""
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    rest = await process.stdout.read()
    await process.wait()
    return rest.decode().splitlines()


async def create(path: Path, *topics: str) -> None:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics([TopicSpec(name, 1) for name in topics])


async def test_killed_writers_lose_no_acknowledged_batch_and_leave_no_half(path: Path, start: Start) -> None:
    await create(path, "t")
    acknowledged: dict[str, int] = {}
    for round_ in range(2):
        names = [f"w{round_}{side}" for side in "ab"]
        writers = [await start("append", name) for name in names]
        for name, writer in zip(names, writers, strict=True):
            for _ in range(5 + 7 * round_):
                acknowledged[name] = int(await line(writer))
        for name, writer in zip(names, writers, strict=True):
            for rest in await kill(writer):
                acknowledged[name] = int(rest)

    async with LocalLog.open(path) as log:
        end = (await log.end_offsets("t"))[AT]
        stored = await read(await log.consumer(["t"]), end)
    assert [record.offset for record in stored] == list(range(end))
    for name, last in acknowledged.items():
        values = [record.value.decode() for record in stored if record.key == name]
        batches = len(values) // BATCH
        assert batches in (last + 1, last + 2)  # one more may have been stored and not yet acknowledged
        assert values == [f"{name}:{batch}:{index}" for batch in range(batches) for index in range(BATCH)]
    for first in range(0, end, BATCH):  # no batch was torn apart by another writer's
        assert len({tuple(r.value.decode().split(":")[:2]) for r in stored[first : first + BATCH]}) == 1


async def test_a_killed_reader_is_replaced_at_once_and_its_records_come_again(
    path: Path, start: Start
) -> None:
    await create(path, "t")
    reader = await start("consume", "g")
    async with LocalLog.open(path, session_timeout_s=1.5) as log:  # looks after its peers every 0.5 s
        await log.append(records("t", ["a", "b", "c", "d", "e"]))
        assert await line(reader) == "a b"
        assert await line(reader) == "c d"
        waiting = await log.consumer(["t"], group="g")
        assert await waiting.poll(timeout_s=0.2) == []  # the reader lives and keeps its partition
        await kill(reader)
        assert [record.value for record in await read(waiting, 3)] == [b"c", b"d", b"e"]


async def test_killed_between_transactions_results_and_positions_agree(path: Path, start: Start) -> None:
    await create(path, "t", "t-a", "t-b")
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.append(records("t", list(map(str, range(3000)))))
        for kills in range(3):
            process = await start("transact", "g")
            for _ in range(3 + 20 * kills):
                last = int(await line(process))
            last = max([last, *map(int, await kill(process))])
            done = (await log.committed_positions("g"))[AT]
            assert done in (last + 1, last + 2)
            results = await read(await log.consumer(["t-a"]), done)
            assert [int(record.value) for record in results] == list(range(done))
            assert (await log.end_offsets("t-b"))[TopicPartition("t-b", 0)] == 3 * done


@pytest.mark.usefixtures("no_recheck")
async def test_an_append_in_another_process_wakes_a_waiting_consumer(path: Path, start: Start) -> None:
    await create(path, "t")
    process = await start("append-once", "hello")
    assert await line(process) == "ready"
    async with LocalLog.open(path) as log:
        consumer = await log.consumer(["t"])
        waiting = asyncio.create_task(consumer.poll(timeout_s=FOREVER_S))
        await asyncio.wait([waiting], timeout=0.1)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        assert [record.value for record in await asyncio.wait_for(waiting, DEADLINE_S)] == [b"hello"]
        assert await line(process) == "appended"


def test_a_process_is_dead_once_killed_even_if_nobody_reaps_it() -> None:
    mine = current_process()
    assert is_alive(mine) is True
    assert is_alive(ProcessIdentity("another host", 1, "1")) is None
    if not mine.started:
        pytest.skip("no /proc: only time-outs tell that a process is gone and its pid reused")
    assert is_alive(ProcessIdentity(mine.host, mine.pid, "12345")) is False  # the pid was reused
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        identity = ProcessIdentity(mine.host, process.pid, stat.rpartition(")")[2].split()[19])
        assert is_alive(identity) is True
        process.kill()
        # Waits for the end without reaping: the process stays as a zombie.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_alive(identity) is False
    assert is_alive(identity) is False
