"""Groups of the local log: time-outs, fair shares, and wake-ups."""

import asyncio
import contextlib
import socket
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.harness import DEADLINE_S, FOREVER_S, read, records, share_out
from unstable_stream.errors import FencedError
from unstable_stream.log.local import log as local
from unstable_stream.log.local.groups import share_out as fair_shares
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.local.processes import current_process
from unstable_stream.log.local.wakeups import wakeup_directory
from unstable_stream.log.port import Consumer, Record, TopicPartition, TopicSpec

AT = TopicPartition("t", 0)
LONG_S = 60
"""Longer than the parts of a test that must not take so long; it passes by a change of what is stored."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite"


@pytest.fixture
async def log(path: Path) -> AsyncIterator[LocalLog]:
    async with LocalLog.open(path, synchronous="NORMAL", session_timeout_s=0.6) as log:
        await log.create_topics([TopicSpec("t", 1), TopicSpec("four", 4)])
        yield log


def _pass_time(path: Path, seconds: int) -> None:
    """Make every member's last sign of life so much older."""
    with contextlib.closing(sqlite3.connect(path, timeout=DEADLINE_S, isolation_level=None)) as connection:
        connection.execute("UPDATE members SET seen_ms = seen_ms - ?", (1000 * seconds,))


async def _taken_over(silent: Consumer, other: Consumer, path: Path) -> None:
    """The other member takes the silent one's partition; then the silent one is fenced, and comes back."""
    await other.poll(timeout_s=0)
    assert other.assignment() == frozenset()  # not before the time-out
    _pass_time(path, LONG_S + 1)
    assert len(await read(other, 1)) == 1
    assert other.assignment() == {AT}
    with pytest.raises(FencedError, match="poll again"):
        await silent.commit()
    await other.commit()
    assert await silent.poll(timeout_s=0) == []
    assert silent.assignment() == frozenset()
    await other.close()
    await share_out([silent], ["t"], 1)
    assert silent.positions() == {AT: 1}  # from the committed position


async def test_a_silent_member_in_another_container_is_replaced_after_the_session_timeout(
    log: LocalLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.append(records("t", ["a"]))
    async with LocalLog.open(path, session_timeout_s=LONG_S) as elsewhere:
        with monkeypatch.context() as patch:
            other_host = replace(current_process(), host="another container")
            patch.setattr(local, "current_process", lambda: other_host)
            silent = await elsewhere.consumer(["t"], group="g")
        await read(silent, 1)
        await _taken_over(silent, await log.consumer(["t"], group="g"), path)


async def test_a_hung_member_is_replaced_after_the_poll_interval(log: LocalLog, path: Path) -> None:
    await log.append(records("t", ["a"]))
    async with LocalLog.open(path, session_timeout_s=600, max_poll_interval_s=LONG_S) as hung:
        silent = await hung.consumer(["t"], group="g")
        await read(silent, 1)
        await _taken_over(silent, await log.consumer(["t"], group="g"), path)


async def test_a_member_busy_for_longer_than_the_session_timeout_keeps_its_partitions(log: LocalLog) -> None:
    await log.append(records("t", ["a"]))
    busy = await log.consumer(["t"], group="g")
    await read(busy, 1)
    other = await log.consumer(["t"], group="g")
    assert await other.poll(timeout_s=1.5) == []  # looks after its peers, and sees a live process
    assert other.assignment() == frozenset()
    await busy.commit()


@pytest.mark.usefixtures("no_recheck")
async def test_a_waiting_member_hands_over_without_losing_its_wait(log: LocalLog) -> None:
    first = await log.consumer(["four"], group="g")
    await share_out([first], ["four"], 4)
    waiting = asyncio.create_task(first.poll(timeout_s=DEADLINE_S))
    second = await log.consumer(["four"], group="g")
    async with asyncio.timeout(DEADLINE_S):
        while len(second.assignment()) < 2:
            assert await second.poll(timeout_s=1) == []
    assert len(first.assignment()) == 2
    number = min(at.partition for at in first.assignment())
    await log.append(records("four", ["a"], partition=number))
    assert [record.value for record in await waiting] == [b"a"]


async def test_nothing_is_taken_from_a_live_member_behind_its_back(log: LocalLog) -> None:
    await log.append([Record("four", "k", b"%d" % number, partition=number) for number in range(4)])
    first = await log.consumer(["four"], group="g")
    await read(first, 4)
    second = await log.consumer(["four"], group="g")
    assert await second.poll(timeout_s=0) == []
    await first.commit({TopicPartition("four", number): 1 for number in (0, 2, 3)})  # all are still its own
    # What it keeps goes on where it was, committed or not; what it gave up comes from the committed position.
    assert await share_out([first, second], ["four"], 4) == []
    assert first.assignment() == {TopicPartition("four", 0), TopicPartition("four", 1)}
    await log.append([Record("four", "k", b"%d" % (10 + number), partition=number) for number in range(4)])
    assert sorted(record.value for record in await read(first, 2)) == [b"10", b"11"]
    assert sorted(record.value for record in await read(second, 2)) == [b"12", b"13"]


async def test_three_members_come_and_go(log: LocalLog) -> None:
    members = [await log.consumer(["four"], group="g") for _ in range(3)]
    await share_out(members, ["four"], 4)
    assert sorted(len(member.assignment()) for member in members) == [1, 1, 2]
    for remaining in (2, 1):
        await members.pop(0).close()
        await share_out(members, ["four"], 4)
        assert len(members) == remaining


@given(
    partitions=st.dictionaries(st.sampled_from("abc"), st.integers(1, 7), min_size=1),
    subscriptions=st.lists(st.sets(st.sampled_from("abc"), min_size=1), min_size=1, max_size=5),
)
def test_each_partition_goes_to_one_subscriber_and_shares_are_even(
    partitions: dict[str, int], subscriptions: list[set[str]]
) -> None:
    names = list(partitions)
    ids = {name: [100 * names.index(name) + n for n in range(partitions[name])] for name in names}
    members = [(f"m{index}", topics) for index, topics in enumerate(subscriptions)]
    shares = fair_shares(ids, members)
    for name in names:
        readers = [member for member, topics in members if name in topics]
        got = Counter(shares[partition] for partition in ids[name] if partition in shares)
        assert set(got) <= set(readers)
        assert sum(got.values()) == (len(ids[name]) if readers else 0)
        if readers:
            counts = [got[reader] for reader in readers]
            assert max(counts) - min(counts) <= 1


# -- wake-ups -------------------------------------------------------------------------------------


async def _wakes(log: LocalLog) -> None:
    """Fail unless a waiting consumer sees an append long before its poll ends."""
    consumer = await log.consumer(["t"], start="end")
    waiting = asyncio.create_task(consumer.poll(timeout_s=FOREVER_S))
    await asyncio.wait([waiting], timeout=0.1)
    await log.append(records("t", ["wake"]))
    assert len(await asyncio.wait_for(waiting, DEADLINE_S)) == 1
    await consumer.close()


@pytest.mark.usefixtures("no_recheck")
async def test_wakeups_work_where_the_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / "log.sqlite"
    assert not wakeup_directory(str(path)).startswith(str(tmp_path))
    async with LocalLog.open(path) as log:
        await log.create_topics([TopicSpec("t", 1)])
        await _wakes(log)


@pytest.mark.usefixtures("no_recheck")
async def test_sockets_of_killed_processes_are_removed(log: LocalLog, path: Path) -> None:
    directory = Path(wakeup_directory(str(path)))
    directory.mkdir()
    stale = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stale.bind(str(directory / "stale"))
    stale.close()
    await _wakes(log)
    await log.create_topics([])  # the write thread is done with waking, too
    assert not (directory / "stale").exists()
    assert len(list(directory.iterdir())) == 1
    await log.close()
    assert list(directory.iterdir()) == []


async def test_without_sockets_a_consumer_looks_again_by_itself(log: LocalLog, path: Path) -> None:
    Path(wakeup_directory(str(path))).write_text("in the way")
    await _wakes(log)


@pytest.mark.usefixtures("no_recheck")
async def test_several_waiting_consumers_all_wake(log: LocalLog) -> None:
    consumers = [await log.consumer(["t"]) for _ in range(5)]
    waiting = [asyncio.create_task(consumer.poll(timeout_s=FOREVER_S)) for consumer in consumers]
    await asyncio.wait(waiting, timeout=0.1)
    await log.append(records("t", ["wake"]))
    async with asyncio.timeout(DEADLINE_S):
        assert [len(found) for found in await asyncio.gather(*waiting)] == [1] * 5
