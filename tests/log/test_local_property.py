"""Properties of the local log: a group processes each record once, in key order; times are found."""

import asyncio
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.log.harness import DEADLINE_S
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import Consumer, Record, StoredRecord, TopicPartition, TopicSpec

Action: TypeAlias = tuple[str, object]

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
        records = []
        for topic, key in batch:
            value = b"%d" % len(self.appended)
            self.appended.append((topic, f"key-{key}", value))
            records.append(Record(topic, f"key-{key}", value))
        await self.log.append(records)

    async def join(self) -> None:
        if len(self.members) < 3:
            self.members.append(await self.log.consumer(list(_TOPICS), group="g"))

    async def poll(self, member: Consumer, timeout_s: float = 0.0) -> None:
        found = await member.poll(max_records=3, timeout_s=timeout_s)
        await member.commit()
        self.processed += found

    async def act(self, action: str, number: int) -> None:
        if not self.members:
            return
        member = self.members[number % len(self.members)]
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
                assert isinstance(argument, list)
                await group.append(argument)
            elif action == "join":
                await group.join()
            else:
                assert isinstance(argument, int)
                await group.act(action, argument)
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
