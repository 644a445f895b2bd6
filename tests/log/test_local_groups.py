"""Groups of the local log: time-outs, fair shares, wake-ups; each record counts once in key order."""

import asyncio
import contextlib
import socket
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.harness import DEADLINE_S, FOREVER_S, read, records, share_out
from unstable_stream.errors import FencedError
from unstable_stream.log.local import log as local
from unstable_stream.log.local.groups import current_process
from unstable_stream.log.local.groups import share_out as fair_shares
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.local.wakeups import wakeup_directory
from unstable_stream.log.port import Consumer, Record, StoredRecord, TopicPartition, TopicSpec

AT = TopicPartition("t", 0)
LONG_S = 60
"""Longer than the parts of a test that must not take so long; it passes by a change of what is stored."""


@pytest.fixture
def path() -> Iterator[Path]:
    # A short one, so that sockets lie beside the log and go with it.
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "log.sqlite"


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
        await silent.commit(silent.positions())
    await other.commit(other.positions())
    assert await silent.poll(timeout_s=0) == []
    assert silent.assignment() == frozenset()
    await other.close()
    await share_out([silent], ["t"], 1)
    assert silent.positions() == {AT: 1}  # from the committed position


@pytest.mark.parametrize("hung", [False, True])
async def test_a_silent_member_is_replaced_after_its_time_out(
    log: LocalLog, path: Path, monkeypatch: pytest.MonkeyPatch, hung: bool
) -> None:
    """Of a hung process of this host the poll interval counts, of another container its session."""
    await log.append(records("t", ["a"]))
    session_s, poll_s = (600, LONG_S) if hung else (LONG_S, 600)
    async with LocalLog.open(path, session_timeout_s=session_s, max_poll_interval_s=poll_s) as elsewhere:
        with monkeypatch.context() as patch:
            if not hung:
                other_host = replace(current_process(), host="another container")
                patch.setattr(local, "current_process", lambda: other_host)
            silent = await elsewhere.consumer(["t"], group="g")
        await read(silent, 1)
        await _taken_over(silent, await log.consumer(["t"], group="g"), path)


async def test_a_member_busy_for_longer_than_the_session_timeout_keeps_its_partitions(log: LocalLog) -> None:
    await log.append(records("t", ["a"]))
    busy = await log.consumer(["t"], group="g")
    await read(busy, 1)
    other = await log.consumer(["t"], group="g")
    assert await other.poll(timeout_s=1.5) == []  # looks after its peers, and sees a live process
    assert other.assignment() == frozenset()
    await busy.commit(busy.positions())


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
    """Fail unless all waiting consumers see an append long before their polls end."""
    consumers = [await log.consumer(["t"], start="end") for _ in range(3)]
    waiting = [asyncio.create_task(consumer.poll(timeout_s=FOREVER_S)) for consumer in consumers]
    await asyncio.wait(waiting, timeout=0.1)
    await log.append(records("t", ["wake"]))
    async with asyncio.timeout(DEADLINE_S):
        assert [len(found) for found in await asyncio.gather(*waiting)] == [1] * 3
    for consumer in consumers:
        await consumer.close()


@pytest.mark.usefixtures("no_recheck")
async def test_wakeups_work_where_the_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / ("d" * 100) / "log.sqlite"
    assert not wakeup_directory(str(path)).startswith(str(tmp_path))
    async with LocalLog.open(path) as log:
        await log.create_topics([TopicSpec("t", 1)])
        await _wakes(log)
    assert not Path(wakeup_directory(str(path))).exists()


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
    assert not directory.exists()


async def test_without_sockets_a_consumer_looks_again_by_itself(log: LocalLog, path: Path) -> None:
    Path(wakeup_directory(str(path))).write_text("in the way")
    await _wakes(log)


Action: TypeAlias = tuple[str, Any]
"""``Any``: a batch to append, or the number of a member."""

_TOPICS = {"t": 3, "u": 2}
_BATCHES = st.lists(st.tuples(st.sampled_from(sorted(_TOPICS)), st.integers(0, 5)), max_size=8)
_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _BATCHES),
        st.tuples(st.just("join"), st.none()),
        st.tuples(st.sampled_from(["poll", "leave", "crash"]), st.integers(0, 2)),
    ),
    max_size=40,
)


class _Group:
    """A group whose members process what they commit; ``processed`` is what an exactly-once sink holds."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.members: list[Consumer] = []
        self.processed: list[StoredRecord] = []
        self.appended: list[tuple[str, str, bytes]] = []

    async def append(self, batch: list[tuple[str, int]]) -> None:
        first = len(self.appended)
        self.appended += [(topic, f"key-{key}", b"%d" % n) for n, (topic, key) in enumerate(batch, first)]
        await self.log.append([Record(*each) for each in self.appended[first:]])

    async def join(self) -> None:
        if len(self.members) < 3:
            self.members.append(await self.log.consumer(list(_TOPICS), group="g"))

    async def poll(self, member: Consumer, timeout_s: float = 0.0) -> None:
        found = await member.poll(max_records=3, timeout_s=timeout_s)
        await member.commit(member.positions())
        self.processed += found

    async def act(self, action: str, member: Consumer) -> None:
        if action == "poll":
            await self.poll(member)
            return
        if action == "crash":
            await member.poll(max_records=3, timeout_s=0)  # processed, but not committed
        self.members.remove(member)
        await member.close()


async def _run(actions: list[Action], path: Path) -> None:
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics([TopicSpec(name, partitions) for name, partitions in _TOPICS.items()])
        group = _Group(log)
        for action, argument in actions:
            if action == "append":
                await group.append(argument)
            elif action == "join":
                await group.join()
            elif group.members:
                await group.act(action, group.members[argument % len(group.members)])
        await group.join()
        async with asyncio.timeout(DEADLINE_S):
            while len(group.processed) < len(group.appended):
                for member in group.members:
                    await group.poll(member, timeout_s=0.01)
        for member in group.members:
            await group.poll(member)  # there is nothing more

    assert sorted(int(record.value) for record in group.processed) == list(range(len(group.appended)))
    by_key: dict[tuple[str, str], list[bytes]] = defaultdict(list)
    for topic, key, value in group.appended:
        by_key[topic, key].append(value)
    for place, values in by_key.items():
        assert [r.value for r in group.processed if (r.topic, r.key) == place] == values


async def _find_times(batches: list[list[int]], deleted: int, path: Path) -> None:
    at = TopicPartition("t", 0)
    moments = [moment for batch in batches for moment in batch]
    deleted = min(deleted, len(moments))
    async with LocalLog.open(path, synchronous="NORMAL") as log:
        await log.create_topics([TopicSpec("t", 1)])
        for batch in batches:
            await log.append([Record("t", "k", b"", timestamp_ms=moment) for moment in batch])
        await log.delete_before({at: deleted})
        for wanted in range(22):
            late = (o for o, moment in enumerate(moments) if o >= deleted and moment >= wanted)
            assert (await log.offsets_for_time("t", wanted))[at] == next(late, len(moments))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(batches=st.lists(st.lists(st.integers(0, 20), max_size=12), max_size=6), deleted=st.integers(0, 8))
def test_times_are_found_as_a_scan_would(batches: list[list[int]], deleted: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_find_times(batches, deleted, Path(directory) / "log.sqlite"))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(actions=_ACTIONS)
def test_members_come_and_go_and_each_record_counts_once_in_key_order(actions: list[Action]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_run(actions, Path(directory) / "log.sqlite"))
