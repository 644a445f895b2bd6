"""Keep the consumer groups of a local log: members, owners of partitions, committed positions.

A live member loses a partition only in its own next :func:`synchronise`, after it has committed what it had
read. A member that is dead, or silent for too long, loses its partitions at once, and its later commits fail.

All functions run inside a transaction.
"""

import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from unstable_stream.errors import FencedError
from unstable_stream.log.local.database import Partition, TopicCatalogue
from unstable_stream.log.port import TopicPartition


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, for all who share its boot and pid namespace.

    The start time tells it from a later process with the same pid.
    """

    host: str
    """Boot id and pid namespace."""
    pid: int
    started: str
    """Start time in clock ticks since boot; empty where it cannot be read."""


@cache
def _host() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def _state_and_start(pid: int) -> tuple[str, str] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    fields = stat[stat.rindex(")") + 2 :].split()
    return fields[0], fields[19]


def current_process() -> ProcessIdentity:
    """Return the identity of this process."""
    pid = os.getpid()
    found = _state_and_start(pid)
    return ProcessIdentity(host=_host(), pid=pid, started=found[1] if found else "")


def is_alive(process: ProcessIdentity) -> bool | None:
    """Return whether ``process`` still runs; a zombie does not.

    ``None``: another container, or a system without ``/proc``. Only a time-out tells.
    """
    if process.host != _host():
        return None
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists, under another user
    found = _state_and_start(process.pid)
    if found is None or not process.started:
        return None
    state, started = found
    return state not in "ZX" and started == process.started


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer of a group."""

    group: str
    member_id: str
    topics: tuple[str, ...]
    process: ProcessIdentity
    session_timeout_ms: int
    max_poll_interval_ms: int


@dataclass(frozen=True, slots=True)
class Owned:
    """A partition in a member's hands."""

    partition: Partition
    generation: int
    """The group's generation when it was handed over: tells this ownership from an earlier one."""
    committed: int | None


_Peer: TypeAlias = tuple[str, tuple[str, ...]]
"""A member's id, and the topics that it reads."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000  # one clock for all processes of a host


def group_id(connection: sqlite3.Connection, name: str) -> int | None:
    """Number of a group, ``None`` if nobody ever joined it."""
    row = connection.execute("SELECT group_id FROM consumer_groups WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


def generation_of(connection: sqlite3.Connection, name: str) -> int:
    """The group's generation; it moves with every change of members or owners. 0: no such group."""
    row = connection.execute("SELECT generation FROM consumer_groups WHERE name = ?", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def share_out(
    partitions: Mapping[str, Sequence[int]], members: Sequence[tuple[str, Iterable[str]]]
) -> dict[int, str]:
    """Return the member that each partition should belong to.

    Each topic is cut into ranges over its subscribers in order, so that topics with as many partitions
    and the same subscribers, hence the same key, come to the same member (Kafka's range assignor).

    Args:
        partitions: topic to its partition ids in order.
        members: member id and the topics it reads, in the order of joining.
    """
    shared: dict[int, str] = {}
    for topic, ids in partitions.items():
        readers = [member_id for member_id, topics in members if topic in topics]
        for index, partition_id in enumerate(ids):
            if readers:
                shared[partition_id] = readers[index * len(readers) // len(ids)]
    return shared


def synchronise(
    connection: sqlite3.Connection, topics: TopicCatalogue, member: Member
) -> tuple[int, list[Owned]]:
    """Join or stay in the group, show that the member lives, and bring the owners closer to a fair share.

    Returns the group's generation and what the member owns from now on.
    """
    connection.execute("INSERT OR IGNORE INTO consumer_groups (name) VALUES (?)", (member.group,))
    group = group_id(connection, member.group)
    assert group is not None
    changed = _register(connection, group, member)
    peers, evicted = _live_peers(connection, group, member)
    changed |= evicted
    changed |= _hand_over(connection, topics, group, member, peers)
    if changed:
        _move_generation(connection, group)
    return generation_of(connection, member.group), _owned(connection, topics, group, member)


def _register(connection: sqlite3.Connection, group: int, member: Member) -> bool:
    updated = connection.execute(
        "UPDATE members SET seen_ms = ? WHERE member_id = ?", (_now_ms(), member.member_id)
    )
    if updated.rowcount:
        return False
    connection.execute(
        """INSERT INTO members (group_id, member_id, topics, host, pid, started, seen_ms,
                                session_timeout_ms, max_poll_interval_ms)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            group,
            member.member_id,
            json.dumps(member.topics),
            member.process.host,
            member.process.pid,
            member.process.started,
            _now_ms(),
            member.session_timeout_ms,
            member.max_poll_interval_ms,
        ),
    )
    return True


def _live_peers(connection: sqlite3.Connection, group: int, member: Member) -> tuple[list[_Peer], bool]:
    """Return all live members in the order of joining, and whether one was put out."""
    peers: list[_Peer] = []
    evicted = False
    rows = connection.execute(
        """SELECT member_id, topics, host, pid, started, seen_ms, session_timeout_ms,
                  max_poll_interval_ms
           FROM members WHERE group_id = ? ORDER BY join_order""",
        (group,),
    ).fetchall()
    for member_id, topics, host, pid, started, seen_ms, session_ms, interval_ms in rows:
        if member_id != member.member_id:
            alive = is_alive(ProcessIdentity(host, pid, started))
            allowed_ms = interval_ms if alive else session_ms
            # A time of last sign in the future was written before a reboot.
            if alive is False or not 0 <= _now_ms() - seen_ms <= allowed_ms:
                _remove(connection, group, member_id)
                evicted = True
                continue
        peers.append((member_id, tuple(json.loads(topics))))
    return peers, evicted


def _hand_over(
    connection: sqlite3.Connection, topics: TopicCatalogue, group: int, member: Member, peers: list[_Peer]
) -> bool:
    """Give the member's surplus away and hand out what nobody owns; return whether owners changed."""
    names = dict.fromkeys(topic for _, topics_of_one in peers for topic in topics_of_one)
    partitions = {
        name: [partition.partition_id for partition in topics.find(connection, name).partitions]
        for name in names
    }
    target = share_out(partitions, peers)
    owners = dict(
        connection.execute("SELECT partition_id, member_id FROM owners WHERE group_id = ?", (group,))
    )
    changed = False
    for partition_id, receiver in target.items():
        owner = owners.get(partition_id)
        if owner in (None, member.member_id) and owner != receiver:
            connection.execute(
                """INSERT INTO owners (group_id, partition_id, member_id, generation)
                   VALUES (?, ?, ?, (SELECT generation + 1 FROM consumer_groups WHERE group_id = ?))
                   ON CONFLICT DO UPDATE
                   SET member_id = excluded.member_id, generation = excluded.generation""",
                (group, partition_id, receiver, group),
            )
            changed = True
    return changed


def _owned(connection: sqlite3.Connection, topics: TopicCatalogue, group: int, member: Member) -> list[Owned]:
    partitions = {
        partition.partition_id: partition
        for name in member.topics
        for partition in topics.find(connection, name).partitions
    }
    rows = connection.execute(
        """SELECT partition_id, generation, next_offset
           FROM owners LEFT JOIN positions USING (group_id, partition_id)
           WHERE group_id = ? AND member_id = ? ORDER BY partition_id""",
        (group, member.member_id),
    )
    return [
        Owned(partitions[partition_id], generation, committed) for partition_id, generation, committed in rows
    ]


def leave(connection: sqlite3.Connection, member: Member) -> None:
    """Take a member out of its group at once."""
    group = group_id(connection, member.group)
    if group is not None:
        _remove(connection, group, member.member_id)
        _move_generation(connection, group)


def _move_generation(connection: sqlite3.Connection, group: int) -> None:
    connection.execute("UPDATE consumer_groups SET generation = generation + 1 WHERE group_id = ?", (group,))


def _remove(connection: sqlite3.Connection, group: int, member_id: str) -> None:
    connection.execute("DELETE FROM members WHERE member_id = ?", (member_id,))
    connection.execute("DELETE FROM owners WHERE group_id = ? AND member_id = ?", (group, member_id))


def commit_positions(
    connection: sqlite3.Connection, member: Member, positions: Sequence[tuple[Owned, int]]
) -> None:
    """Store the next offset of partitions the member owns.

    Raises :class:`FencedError` if one was handed to another member, or taken away and given back.
    """
    group = group_id(connection, member.group)
    owners: dict[int, tuple[str, int]] = {
        partition_id: (member_id, generation)
        for partition_id, member_id, generation in connection.execute(
            "SELECT partition_id, member_id, generation FROM owners WHERE group_id = ?", (group,)
        )
    }
    for owned, _ in positions:
        owner, generation = owners.get(owned.partition.partition_id, ("", 0))
        if (owner, generation) != (member.member_id, owned.generation):
            now = f"another member has it since generation {generation}" if owner else "nobody has it now"
            raise FencedError(
                f"group {member.group!r} gave {owned.partition.at} to this consumer in generation "
                f"{owned.generation}, but {now}: nothing was committed. Drop what was read and poll again; "
                "reading resumes at the committed positions."
            )
    _store_positions(
        connection, group, [(owned.partition.partition_id, offset) for owned, offset in positions]
    )


def commit_for_group(
    connection: sqlite3.Connection, group: str, positions: Sequence[tuple[int, int]]
) -> None:
    """Store the next offset of partitions, by number of their table, whoever owns them."""
    connection.execute("INSERT OR IGNORE INTO consumer_groups (name) VALUES (?)", (group,))
    _store_positions(connection, group_id(connection, group), positions)


def _store_positions(
    connection: sqlite3.Connection, group: int | None, positions: Sequence[tuple[int, int]]
) -> None:
    connection.executemany(
        """INSERT INTO positions (group_id, partition_id, next_offset) VALUES (?, ?, ?)
           ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset""",
        [(group, partition_id, offset) for partition_id, offset in positions],
    )


def groups(connection: sqlite3.Connection) -> list[str]:
    """Names of all groups with committed positions, sorted."""
    query = "SELECT DISTINCT name FROM consumer_groups JOIN positions USING (group_id) ORDER BY name"
    return [name for (name,) in connection.execute(query)]


def committed_positions(connection: sqlite3.Connection, group: str) -> dict[TopicPartition, int]:
    """All positions a group has committed."""
    rows = connection.execute(
        """SELECT topics.name, partition, next_offset
           FROM positions JOIN partitions USING (partition_id) JOIN topics USING (topic_id)
                JOIN consumer_groups USING (group_id)
           WHERE consumer_groups.name = ? ORDER BY partition_id""",
        (group,),
    )
    return {TopicPartition(topic, partition): offset for topic, partition, offset in rows}


def forget_groups(connection: sqlite3.Connection, names: Collection[str]) -> None:
    """Delete members, owners and positions of groups; their generations go on."""
    for table in ("members", "owners", "positions"):
        query = f"DELETE FROM {table} WHERE group_id = (SELECT group_id FROM consumer_groups WHERE name = ?)"
        connection.executemany(query, [(name,) for name in names])


# -- states that are saved with positions: one row for each scope and name ------------------------------


def save(connection: sqlite3.Connection, scope: str, states: Mapping[str, bytes]) -> None:
    """Replace states by name; forget those that are empty."""
    connection.executemany(
        """INSERT INTO states (scope, name, state) VALUES (?, ?, ?)
           ON CONFLICT DO UPDATE SET state = excluded.state""",
        [(scope, name, state) for name, state in states.items() if state],
    )
    connection.executemany(
        "DELETE FROM states WHERE scope = ? AND name = ?",
        [(scope, name) for name, state in states.items() if not state],
    )


def saved(connection: sqlite3.Connection, scope: str, names: Collection[str] | None) -> dict[str, bytes]:
    """Return the states of a scope, or only those of these names."""
    connection.execute("BEGIN")  # one snapshot: all states are of one moment
    try:
        if names is None:
            return dict(connection.execute("SELECT name, state FROM states WHERE scope = ?", (scope,)))
        query = "SELECT name, state FROM states WHERE scope = ? AND name = ?"
        return {
            str(name): state for wanted in names for name, state in connection.execute(query, (scope, wanted))
        }
    finally:
        connection.execute("COMMIT")


def saved_names(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """Return the names of all states by scope."""
    found: dict[str, list[str]] = {}
    for scope, name in connection.execute("SELECT scope, name FROM states ORDER BY scope, name"):
        found.setdefault(str(scope), []).append(str(name))
    return found
