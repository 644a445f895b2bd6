"""Compare a log's topics with ``topics/*.toml`` and tell how to correct each difference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from unstable_stream.console import get_logger
from unstable_stream.errors import EventLogError, PartitionsChangedError, UnknownTopicError
from unstable_stream.log.port import EventLog, TopicSpec
from unstable_stream.log.topics import load_topics

_DAY_MS: Final = 86_400_000

WHEN_OPENED: Final = "when this process opened the log"

Setting: TypeAlias = Literal[
    "topic", "partitions", "cleanup_policy", "retention_ms", "max_message_bytes", "loses_by"
]

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Drift:
    """One setting of one topic that differs from its declaration; setting ``topic``: the topic is missing."""

    declared: TopicSpec
    actual: TopicSpec | None
    setting: Setting

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.declared.name

    @property
    def endangers_runs(self) -> bool:
        """True if records would be refused or lost, or if keys would be in other partitions than the code
        expects.
        """
        declared, actual = self.declared, self.actual
        if actual is None:
            return False  # a run creates missing topics
        if self.setting == "retention_ms":
            return actual.retention_ms is not None and (
                declared.retention_ms is None or actual.retention_ms < declared.retention_ms
            )
        if self.setting == "max_message_bytes":
            return actual.max_message_bytes < declared.max_message_bytes
        if self.setting == "cleanup_policy":
            return actual.cleanup_policy == "compact"
        return True

    def __str__(self) -> str:
        if self.actual is None:
            return f"{self.topic}: missing"
        if self.setting == "loses_by":
            return f"{self.topic}: {', '.join(self.actual.loses_by)} would lose acknowledged records"
        name = self.setting.replace("_", " ").removesuffix(" ms")
        found, wanted = (show_setting(spec, self.setting) for spec in (self.actual, self.declared))
        return f"{self.topic}: {name} {found}, declared {wanted}"


def find_drift(declared: Mapping[str, TopicSpec], actual: Mapping[str, TopicSpec]) -> list[Drift]:
    """Return every difference, by topic; undeclared topics are ignored."""
    found: list[Drift] = []
    for name, spec in sorted(declared.items()):
        there = actual.get(name)
        if there is None:
            found.append(Drift(spec, None, "topic"))
            continue
        settings: list[Setting] = ["cleanup_policy", "max_message_bytes"]
        if there.partitions not in spec.earlier_partitions:
            settings.insert(0, "partitions")
        if spec.cleanup_policy == "delete":
            settings.append("retention_ms")  # has no meaning if only the latest record of each key is kept
        settings.append("loses_by")
        found += [
            Drift(spec, there, each) for each in settings if getattr(spec, each) != getattr(there, each)
        ]
    return found


def remedy(drift: Drift, log: str, place: str = "") -> str:
    """Return the command that corrects a difference, or for partitions a description of the remedy.

    Args:
        drift: the difference.
        log: the log's location.
        place: options that lead a command to that log, beginning with a space.
    """
    if drift.setting == "topic":
        return f"unstable-stream topics create{place}"
    brokers = log.partition("://")[2].partition("/")[0].partition("?")[0].rpartition("@")[2]
    if drift.setting == "loses_by":
        return (
            f"kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics --entity-name "
            f"{drift.topic} --add-config unclean.leader.election.enable=false,min.insync.replicas=2,"
            "retention.bytes=-1; with one or two brokers min.insync.replicas=1"
        )
    if drift.setting != "partitions":
        return f"unstable-stream topics create --alter{place}"
    # The number of partitions decides the partition of a key, and no log takes partitions away.
    keep = "the records of a key would lie on two partitions. No run can go on with this log: start one"
    if log == "local":
        return f"{keep} in another directory with --data. What is archived of this one stays readable"
    return (
        f"{keep} on another cluster with --log. What is archived of this one stays readable. To throw the "
        f"topic's records away instead: kafka-topics.sh --bootstrap-server {brokers} --delete "
        f"--topic {drift.topic} && unstable-stream topics create{place}"
    )


def check_partitions(spec: TopicSpec, existing: int | None) -> None:
    """Raise :class:`EventLogError` for a topic that cannot be, or exists with other partitions."""
    if spec.partitions < 1:
        raise EventLogError(f"topic {spec.name!r}: {spec.partitions} partitions, expected at least 1.")
    if existing and existing != spec.partitions:
        raise EventLogError(
            f"topic {spec.name!r} exists with {existing} partitions, {spec.partitions} were asked for: "
            "the records of a key would lie on two partitions. Use another log."
        )


def check_partition(topic: str, partition: int, partitions: int) -> None:
    """Raise :class:`UnknownTopicError` for a partition that a topic does not have."""
    if not 0 <= partition < partitions:
        raise UnknownTopicError(
            f"unknown partition {topic}[{partition}]: the topic has partitions 0 to {partitions - 1}."
        )


def partitions_changed(topic: str, before: int, now: int, when: str) -> PartitionsChangedError:
    """Return the error that a topic had ``before`` partitions at some time, and has ``now``.

    ``when``: the time in words, e.g. :data:`WHEN_OPENED`.
    """
    return PartitionsChangedError(
        f"topic {topic!r} had {before} partitions {when}, and has {now} now: later records of a key are in "
        "another partition than its earlier ones, out of order. Nothing is lost, and what is recorded can be "
        "read. Kafka takes no partitions away, so begin new runs on topics as they are declared: "
        "unstable-stream topics check"
    )


async def prepare_topics(log: EventLog, location: str, place: str = "") -> None:
    """Create missing topics, after a check that no topic would endanger a run.

    Raises:
        EventLogError: topics have settings that would lose or refuse records; the message names each and the
            remedy.
    """
    declared = load_topics()
    drift = _checked(find_drift(declared, await log.topic_settings()), location, place)
    for each in drift:
        if each.actual is not None:
            _log.warning("topic not as declared", difference=str(each), mend=remedy(each, location, place))
    await create_declared_topics(log, declared)
    if any(each.actual is None for each in drift):  # the brokers' defaults decide on new ones
        _checked(find_drift(declared, await log.topic_settings()), location, place)


def _checked(drift: list[Drift], location: str, place: str) -> list[Drift]:
    """Return the differences; raise :class:`EventLogError` if one endangers runs."""
    fatal = [each for each in drift if each.endangers_runs]
    if fatal:
        lines = [f"{each}\n    {remedy(each, location, place)}" for each in fatal]
        raise EventLogError(
            "topics of this log are not as declared, and a run could lose or misplace records:\n  "
            + "\n  ".join(lines)
        )
    return drift


async def create_declared_topics(log: EventLog, declared: Mapping[str, TopicSpec]) -> None:
    """Create missing topics. One that an earlier version made keeps its number of partitions: another one
    would put the later records of a key elsewhere than its earlier ones.

    Raises:
        EventLogError: a topic exists with a number of partitions that no version declared.
    """
    there = await log.topics()
    await log.create_topics(
        [with_partitions(spec, there.get(name, spec.partitions)) for name, spec in declared.items()]
    )


def with_partitions(spec: TopicSpec, partitions: int) -> TopicSpec:
    """Return the topic with so many partitions, if it was ever declared so; otherwise as it is declared."""
    return replace(spec, partitions=partitions) if partitions in spec.earlier_partitions else spec


def show_setting(spec: TopicSpec, setting: Setting) -> str:
    """Return a topic's setting for people."""
    value = getattr(spec, setting)
    if setting == "retention_ms":
        if value is None:
            return "forever"
        return f"{value // _DAY_MS} days" if value % _DAY_MS == 0 else f"{value} ms"
    return f"{value:,} bytes" if setting == "max_message_bytes" else str(value)
