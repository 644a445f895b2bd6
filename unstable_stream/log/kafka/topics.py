"""The topics of a Kafka cluster and their settings, and the groups that have committed positions."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from aiokafka import errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from unstable_stream.errors import UnknownTopicError
from unstable_stream.log.kafka.cluster import Brokers, Lazy
from unstable_stream.log.kafka.errors import translated
from unstable_stream.log.port import Positions, TopicPartition, TopicSpec
from unstable_stream.log.topic_drift import WHEN_OPENED, check_partitions, partitions_changed

_UNCLEAN: Final = "unclean.leader.election.enable"
_IN_SYNC: Final = "min.insync.replicas"
_BY_SIZE: Final = "retention.bytes"
_SET_ON_TOPIC: Final = 1  # source of a setting: set on this topic, not a default of the broker or of Kafka
_GROUPS_AT_ONCE: Final = 16
_LOOKS: Final = 10
_LOOK_S: Final = 0.3
_NAMED: Final = 20  # the most topics named in a message


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """The facts about a topic that writing needs."""

    name: str
    partitions: int
    max_message_bytes: int


class KafkaTopics:
    """The cluster's topics; they are read again when an unknown topic is asked for."""

    def __init__(self, cluster: Brokers) -> None:
        self._cluster = cluster
        self._admin = Lazy(self._connect, lambda admin: admin.close())
        self._known: dict[str, KafkaTopic] = {}

    async def _connect(self) -> AIOKafkaAdminClient:
        admin = AIOKafkaAdminClient(**self._cluster.settings())
        await self._cluster.start(admin.start, "connect")
        return admin

    async def close(self) -> None:
        """Close the connection."""
        await self._admin.close()

    # -- what there is ----------------------------------------------------------------------------

    async def cluster_id(self) -> str:
        """Return the id that the cluster received at its creation."""
        admin = await self._admin.get()
        found = await self._cluster.ask(admin.describe_cluster, "ask for the cluster's id")
        return str(found["cluster_id"])

    async def partitions(self) -> dict[str, int]:
        """Return the number of partitions by topic name, without Kafka's own topics."""
        admin = await self._admin.get()
        # Ask for all topics: asking for one by name would create it on brokers with automatic creation.
        found = await self._cluster.ask(admin.describe_topics, "list the topics")
        return _partitions(found)

    def known(self, name: str) -> KafkaTopic | None:
        """Return a topic if it is known already."""
        return self._known.get(name)

    async def find(self, names: Iterable[str], *, reload: bool = False) -> Mapping[str, KafkaTopic]:
        """Return these topics.

        Raises:
            UnknownTopicError: one does not exist.
            PartitionsChangedError: one had another number of partitions before.
        """
        names = dict.fromkeys(names)
        if reload or not all(name in self._known for name in names):
            found = await self._cluster.ask(lambda: self._look_for(names), "read the topics")
            for name, topic in found.items():
                before = self._known.get(name, topic).partitions
                if topic.partitions != before:
                    raise partitions_changed(name, before, topic.partitions, WHEN_OPENED)
            self._known |= found
        return {name: self._known[name] for name in names}

    async def _look_for(self, names: Iterable[str]) -> dict[str, KafkaTopic]:
        """Return these topics; look again for a new one, of which each broker hears at a time of its own.

        Raises:
            UnknownTopicError: the brokers that were asked do not know one of them.
            kafka.StaleMetadata: the broker that was asked does not know the settings of one yet.
        """
        for look in range(1, _LOOKS + 1):
            partitions = await self.partitions()
            missing = next((name for name in names if name not in partitions), None)
            if missing is None:
                break
            if look == _LOOKS:
                self._known.pop(missing, None)
                known = ", ".join([*partitions][:_NAMED]) or "none"
                known += f" and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else ""
                raise UnknownTopicError(
                    f"unknown topic {missing!r}; topics of {self._cluster.location}: {known}. Create it "
                    "with `unstable-stream topics create`."
                )
            await asyncio.sleep(_LOOK_S)
        return {
            name: KafkaTopic(name, partitions[name], int(settings["max.message.bytes"][0]))
            for name, settings in (await self._describe(names)).items()
        }

    async def settings(self) -> dict[str, TopicSpec]:
        """Return all topics with their present settings."""

        async def look() -> dict[str, TopicSpec]:
            partitions = await self.partitions()
            described = await self._describe(partitions)
            brokers = len((await (await self._admin.get()).describe_cluster())["brokers"])
            return {
                name: _spec(name, number, described[name], brokers) for name, number in partitions.items()
            }

        return await self._cluster.ask(look, "read the topics' settings")

    async def _describe(self, names: Iterable[str]) -> dict[str, dict[str, tuple[str, int]]]:
        """Return the value and source of each setting, by topic.

        Raises kafka.StaleMetadata if a topic is new to the broker that was asked, or was just deleted.
        """
        wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        if not wanted:
            return {}
        admin = await self._admin.get()
        (answer,) = await self._cluster.ask(
            lambda: admin.describe_configs(wanted), "read the topics' settings"
        )
        found: dict[str, dict[str, tuple[str, int]]] = {}
        for code, message, _, name, entries in answer.resources:
            if kafka.for_code(code) is kafka.UnknownTopicOrPartitionError:
                raise kafka.StaleMetadata(f"a broker does not know the settings of topic {name!r}")
            self._check(code, message, f"read the settings of topic {name!r}")
            found[name] = {setting: (value, source) for setting, value, _, source, *_ in entries}
        return found

    def _check(self, code: int, message: str | None, doing: str) -> None:
        if code:
            raise translated(kafka.for_code(code)(message or ""), self._cluster.location, doing)

    # -- making and changing them -----------------------------------------------------------------

    async def create(self, specs: Sequence[TopicSpec], more: Mapping[str, str] | None = None) -> None:
        """Create missing topics, with the brokers' default replication.

        ``more``: settings that a spec has not.

        Raises :class:`EventLogError` if an existing one has another number of partitions.
        """
        missing = self._missing(specs, await self.partitions())
        if not missing:
            return
        admin = await self._admin.get()
        new = [
            NewTopic(spec.name, spec.partitions, -1, {}, {**_configuration(spec), **(more or {})})
            for spec in missing
        ]

        async def create() -> Any:
            try:
                return await admin.create_topics(new)
            except AttributeError as error:
                if error.name != "nodeId" or error.obj is not None:
                    raise
                # aiokafka assumes that brokers know their controller, but brokers that have just started may
                # not.
                raise kafka.NotControllerError() from error

        answer = await self._cluster.ask(create, "create topics")
        for name, code, message in answer.topic_errors:
            if kafka.for_code(code) is not kafka.TopicAlreadyExistsError:
                self._check(code, message, f"create topic {name!r}")
        await self._wait_until_there(admin, missing)

    def _missing(self, specs: Sequence[TopicSpec], partitions: Mapping[str, int]) -> list[TopicSpec]:
        for spec in specs:
            check_partitions(spec, partitions.get(spec.name))
        return list({spec.name: spec for spec in specs if spec.name not in partitions}.values())

    async def _wait_until_there(self, admin: Any, specs: Sequence[TopicSpec]) -> None:
        """Wait until the brokers know the topics and each partition has a leader."""

        async def look() -> None:
            waiting = {spec.name for spec in specs}
            for topic in await admin.describe_topics():
                if topic["topic"] in waiting and all(p["leader"] >= 0 for p in topic["partitions"]):
                    waiting.discard(topic["topic"])
            if waiting:
                raise kafka.LeaderNotAvailableError(f"no leader yet: {', '.join(sorted(waiting))}")

        await self._cluster.ask(look, "create topics")
        # Another process may have created the topic at the same time, with another number of partitions.
        self._missing(specs, await self.partitions())

    async def alter(self, specs: Sequence[TopicSpec]) -> None:
        """Give existing topics the settings of their spec; raises :class:`UnknownTopicError`.

        Other settings of the topics stay. The request replaces all settings of a topic, so they are read
        first. If two processes change one topic at the same moment, one change may be lost.
        """
        await self.find([spec.name for spec in specs], reload=True)
        now = await self._cluster.ask(
            lambda: self._describe(spec.name for spec in specs), "read the topics' settings"
        )
        changes = []
        for spec in specs:
            kept = {
                name: value for name, (value, source) in now[spec.name].items() if source == _SET_ON_TOPIC
            }
            changes.append(ConfigResource(ConfigResourceType.TOPIC, spec.name, kept | _configuration(spec)))
        admin = await self._admin.get()
        (answer,) = await self._cluster.ask(lambda: admin.alter_configs(changes), "change topics")
        for code, message, _, name, *_ in answer.resources:
            self._check(code, message, f"change topic {name!r}")
        await self._wait_until_set(specs)

    async def _wait_until_set(self, specs: Sequence[TopicSpec]) -> None:
        wanted = {spec.name: _configuration(spec) for spec in specs}

        async def look() -> None:
            for name, settings in (await self._describe(wanted)).items():
                if any(settings[key][0] != value for key, value in wanted[name].items()):
                    raise kafka.StaleMetadata(f"topic {name!r} is not changed yet")

        await self._cluster.ask(look, "change topics")
        await self.find(wanted, reload=True)

    # -- groups -----------------------------------------------------------------------------------

    async def groups(self) -> list[str]:
        """Return the names of all groups that have committed positions, sorted."""
        admin = await self._admin.get()
        found = await self._cluster.ask(admin.list_consumer_groups, "list the groups")
        room = asyncio.Semaphore(_GROUPS_AT_ONCE)

        async def has_positions(group: str) -> bool:
            async with room:
                return bool(await self.committed(group))

        names = sorted({str(name) for name, *_ in found})
        have = await asyncio.gather(*(has_positions(name) for name in names))
        return [name for name, has in zip(names, have, strict=True) if has]

    async def committed(self, group: str) -> Positions:
        """Return all positions that a group has committed."""
        admin = await self._admin.get()
        found = await self._cluster.ask(
            lambda: admin.list_consumer_group_offsets(group), f"read the positions of group {group!r}"
        )
        return {TopicPartition(*at): stored.offset for at, stored in found.items() if stored.offset >= 0}


def _partitions(described: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of partitions by topic name, as one broker describes them."""
    return {
        topic["topic"]: len(topic["partitions"])
        for topic in sorted(described, key=lambda topic: str(topic["topic"]))
        if not topic["error_code"] and not topic["is_internal"]
    }


def _configuration(spec: TopicSpec) -> dict[str, str]:
    return {
        "cleanup.policy": spec.cleanup_policy,
        "retention.ms": str(-1 if spec.retention_ms is None else spec.retention_ms),
        "max.message.bytes": str(spec.max_message_bytes),
    }


def _spec(name: str, partitions: int, settings: Mapping[str, tuple[str, int]], brokers: int) -> TopicSpec:
    retention_ms = int(settings["retention.ms"][0])
    # "compact,delete" counts as "compact": for a reader it matters only that old values are removed.
    policy: Literal["delete", "compact"] = (
        "compact" if "compact" in settings["cleanup.policy"][0] else "delete"
    )
    return TopicSpec(
        name=name,
        partitions=partitions,
        cleanup_policy=policy,
        retention_ms=None if retention_ms < 0 else retention_ms,
        max_message_bytes=int(settings["max.message.bytes"][0]),
        loses_by=_loses_by(settings, brokers),
    )


def _loses_by(settings: Mapping[str, tuple[str, int]], brokers: int) -> tuple[str, ...]:
    """Return the settings with which brokers lose acknowledged records; one or two may keep one copy."""
    dangers = {
        _UNCLEAN: settings[_UNCLEAN][0] == "true",
        _IN_SYNC: brokers > 2 > int(settings[_IN_SYNC][0]),
        _BY_SIZE: int(settings[_BY_SIZE][0]) >= 0,
    }
    return tuple(f"{name}={settings[name][0]}" for name, loses in dangers.items() if loses)
