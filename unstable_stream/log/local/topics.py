"""Keep the topics of a local log and their settings."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unstable_stream.errors import UnknownTopicError
from unstable_stream.log.local.database import create_partition_table
from unstable_stream.log.port import TopicPartition, TopicSpec
from unstable_stream.log.topic_drift import check_partition, check_partitions


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition and the number of its table."""

    partition_id: int
    at: TopicPartition


@dataclass(frozen=True, slots=True)
class LocalTopic:
    """A topic as this log has it."""

    name: str
    max_message_bytes: int
    retention_ms: int | None
    """``None``: kept for ever, also where the policy is ``compact``, which a local log never does."""
    partitions: tuple[Partition, ...]


class TopicCatalogue:
    """All topics, read again when one is asked for that is not known yet.

    Shared by the threads of a log: a reload replaces the mapping as a whole.
    """

    def __init__(self) -> None:
        self._topics: Mapping[str, LocalTopic] = {}

    def reload(self, connection: sqlite3.Connection) -> Mapping[str, LocalTopic]:
        """Read all topics from the log."""
        partitions: dict[int, list[Partition]] = {}
        query = """SELECT topic_id, name, partition, partition_id FROM partitions JOIN topics USING (topic_id)
                   ORDER BY topic_id, partition"""
        for topic_id, name, number, partition_id in connection.execute(query):
            partitions.setdefault(topic_id, []).append(Partition(partition_id, TopicPartition(name, number)))
        query = """SELECT topic_id, name, max_message_bytes, retention_ms, cleanup_policy FROM topics
                   ORDER BY name"""
        self._topics = {
            name: LocalTopic(
                name, limit, retention_ms if policy == "delete" else None, tuple(partitions[topic_id])
            )
            for topic_id, name, limit, retention_ms, policy in connection.execute(query)
        }
        return self._topics

    def find(self, connection: sqlite3.Connection, name: str) -> LocalTopic:
        """Return a topic; raises :class:`UnknownTopicError` with the names there are."""
        topic = self._topics.get(name) or self.reload(connection).get(name)
        if topic is None:
            known = ", ".join(self._topics) or "none yet"
            raise UnknownTopicError(
                f"unknown topic {name!r}; topics of this log: {known}. Create it with create_topics first."
            )
        return topic

    def find_partition(self, connection: sqlite3.Connection, at: TopicPartition) -> Partition:
        """Return a partition; raises :class:`UnknownTopicError` if there is none."""
        return partition_of(self.find(connection, at.topic), at.partition)


def partition_of(topic: LocalTopic, number: int) -> Partition:
    """Return one partition of a topic; raises :class:`UnknownTopicError` if there is none."""
    check_partition(topic.name, number, len(topic.partitions))
    return topic.partitions[number]


def create_topics(connection: sqlite3.Connection, specs: Sequence[TopicSpec]) -> None:
    """Create the topics that do not exist.

    Raises :class:`EventLogError` if an existing one has another number of partitions.
    """
    for spec in specs:
        query = "SELECT count(*) FROM partitions JOIN topics USING (topic_id) WHERE name = ?"
        (existing,) = connection.execute(query, (spec.name,)).fetchone()
        check_partitions(spec, existing)
        if existing:
            continue
        topic_id = connection.execute(
            "INSERT INTO topics (cleanup_policy, retention_ms, max_message_bytes, name) VALUES (?, ?, ?, ?)",
            _settings(spec),
        ).lastrowid
        for number in range(spec.partitions):
            partition_id = connection.execute(
                "INSERT INTO partitions (topic_id, partition) VALUES (?, ?)", (topic_id, number)
            ).lastrowid
            assert partition_id is not None
            create_partition_table(connection, partition_id)


def alter_topics(connection: sqlite3.Connection, specs: Sequence[TopicSpec]) -> None:
    """Give existing topics the settings of their spec; raises :class:`UnknownTopicError`."""
    for spec in specs:
        changed = connection.execute(
            "UPDATE topics SET cleanup_policy = ?, retention_ms = ?, max_message_bytes = ? WHERE name = ?",
            _settings(spec),
        ).rowcount
        if not changed:
            raise UnknownTopicError(f"unknown topic {spec.name!r}: create it with create_topics first.")


def _settings(spec: TopicSpec) -> tuple[str, int | None, int, str]:
    return spec.cleanup_policy, spec.retention_ms, spec.max_message_bytes, spec.name


def topic_settings(connection: sqlite3.Connection) -> dict[str, TopicSpec]:
    """Return the topics as they are declared here."""
    query = """SELECT name, count(*), cleanup_policy, retention_ms, max_message_bytes
               FROM topics JOIN partitions USING (topic_id) GROUP BY topic_id ORDER BY name"""
    return {row[0]: TopicSpec(*row) for row in connection.execute(query)}
