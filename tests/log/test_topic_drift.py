"""Differences between declared and actual topics are found, named, and come with what mends them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from unstable_stream.errors import EventLogError
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.port import TopicSpec
from unstable_stream.log.topic_drift import Drift, find_drift, prepare_topics, remedy
from unstable_stream.log.topics import load_topics, manifests

DECLARED = TopicSpec("steps", 8, retention_ms=604_800_000, max_message_bytes=1_000_000)


def drift_of(**changes: Any) -> list[Drift]:
    return find_drift({"steps": DECLARED}, {"steps": replace(DECLARED, **changes)})


@pytest.mark.parametrize(
    ("changes", "says", "endangers"),
    [
        ({"partitions": 4}, "partitions 4, declared 8", True),
        ({"cleanup_policy": "compact"}, "cleanup policy compact, declared delete", True),
        ({"retention_ms": 86_400_000}, "retention 1 days, declared 7 days", True),
        ({"retention_ms": None}, "retention forever, declared 7 days", False),
        ({"retention_ms": 5_000}, "retention 5000 ms, declared 7 days", True),
        ({"max_message_bytes": 1_000}, "max message bytes 1,000 bytes, declared 1,000,000 bytes", True),
        ({"max_message_bytes": 2**25}, "max message bytes 33,554,432 bytes, declared 1,000,000 bytes", False),
        ({"loses_by": ("a=1", "b=true")}, "a=1, b=true would lose acknowledged records", True),
    ],
)
def test_each_difference_is_named_and_judged(changes: dict[str, Any], says: str, endangers: bool) -> None:
    (drift,) = drift_of(**changes)
    assert (str(drift), drift.endangers_runs) == (f"steps: {says}", endangers)


def test_a_missing_topic_is_drift_that_a_run_mends() -> None:
    assert drift_of() == []
    (drift,) = find_drift({"steps": DECLARED}, {"other": TopicSpec("other", 1)})
    assert (str(drift), drift.endangers_runs) == ("steps: missing", False)
    assert remedy(drift, "local", " --data d") == "unstable-stream topics create --data d"


def test_retention_means_nothing_where_only_the_latest_is_kept() -> None:
    compacted = replace(DECLARED, cleanup_policy="compact", retention_ms=None)
    assert find_drift({"steps": compacted}, {"steps": replace(compacted, retention_ms=1)}) == []


BROKERS = "b1:9092,b2:9092"
PLACE = f" --log kafka://{BROKERS}"


@pytest.mark.parametrize(
    ("changes", "log", "told"),
    [
        ({"retention_ms": 1}, "local", [f"unstable-stream topics create --alter{PLACE}"]),
        (
            {"loses_by": ("min.insync.replicas=1",)},
            f"kafka://{BROKERS}",
            [
                f"kafka-configs.sh --bootstrap-server {BROKERS} --alter",
                "--entity-name steps --add-config unclean.leader.election.enable=false,min.insync.replicas=2",
            ],
        ),
        (
            {"partitions": 4},
            f"kafka://{BROKERS}?security_protocol=SSL",
            [
                "another cluster with --log",
                f"kafka-topics.sh --bootstrap-server {BROKERS} --delete --topic steps &&",
            ],
        ),
        ({"partitions": 4}, "local", ["another directory with --data"]),
    ],
)
def test_settings_are_mended_by_a_command_and_partitions_by_hand(
    changes: dict[str, Any], log: str, told: list[str]
) -> None:
    (drift,) = drift_of(**changes)
    said = remedy(drift, log, PLACE)
    assert all(part in said for part in told)
    assert ".toml" not in said, "the package is not the user's to edit"
    assert "kafka-" not in said or log != "local"


async def test_preparing_creates_what_is_missing_and_refuses_what_endangers(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await prepare_topics(log, "local")
        assert find_drift(load_topics(), await log.topic_settings()) == []
        harmless = replace(load_topics()["metrics"], retention_ms=None)
        await log.alter_topics([harmless])
        await prepare_topics(log, "local")
        await log.alter_topics([replace(load_topics()["runs"], max_message_bytes=1000)])
        with pytest.raises(EventLogError, match=r"runs: max message bytes 1,000 bytes, declared 1,048,576"):
            await prepare_topics(log, "local", " --data d")


async def test_fewer_partitions_are_refused_before_anything_is_created(tmp_path: Path) -> None:
    async with LocalLog.open(tmp_path / "log.sqlite", synchronous="NORMAL") as log:
        await log.create_topics([replace(load_topics()["steps"], partitions=2)])
        with pytest.raises(EventLogError, match="steps: partitions 2, declared 8") as refused:
            await prepare_topics(log, "local", " --data d")
        assert "another directory with --data" in str(refused.value)
        assert set(await log.topics()) == {"steps"}


async def test_a_topic_of_an_earlier_version_keeps_its_number_of_partitions(tmp_path: Path) -> None:
    """Its keys stay where they are; a new log gets as many as are declared now."""
    async with LocalLog.open(tmp_path / "old.sqlite", synchronous="NORMAL") as log:
        await log.create_topics([replace(load_topics()["games"], partitions=1)])
        await prepare_topics(log, "local")
        assert find_drift(load_topics(), await log.topic_settings()) == []
        assert (await log.topics())["games"] == 1
        assert (await log.topics())["game-outcomes"] == load_topics()["game-outcomes"].partitions > 1


@pytest.mark.parametrize(("replicas", "in_sync"), [(1, 1), (2, 1), (3, 2), (5, 2)])
@pytest.mark.parametrize("options", [{"namespace": "kafka"}, {"api_version": "v1beta2"}])
def test_the_manifests_for_strimzi_are_the_declaration(
    replicas: int, in_sync: int, options: dict[str, str]
) -> None:
    """A record counts as written when most copies have it."""
    text = manifests(load_topics().values(), "true", replicas=replicas, **options)
    for spec, each in zip(load_topics().values(), yaml.safe_load_all(text), strict=True):
        metadata = {"name": spec.name, "labels": {"strimzi.io/cluster": "true"}}  # a text, as it is quoted
        metadata |= {"namespace": "kafka"} if "namespace" in options else {}
        assert each == {
            "apiVersion": f"kafka.strimzi.io/{options.get('api_version', 'v1')}",
            "kind": "KafkaTopic",
            "metadata": metadata,
            "spec": {
                "partitions": spec.partitions,
                "replicas": replicas,
                "config": {
                    "cleanup.policy": spec.cleanup_policy,
                    "retention.ms": -1 if spec.retention_ms is None else spec.retention_ms,
                    "max.message.bytes": spec.max_message_bytes,
                    "min.insync.replicas": in_sync,
                },
            },
        }
