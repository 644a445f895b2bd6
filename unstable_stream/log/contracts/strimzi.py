"""The topics as ``KafkaTopic`` resources, for clusters where Strimzi's topic operator owns the topics."""

import json
from collections.abc import Iterable

from unstable_stream.log.port import TopicSpec


def manifests(
    topics: Iterable[TopicSpec],
    cluster: str,
    *,
    replicas: int = 3,
    namespace: str | None = None,
    api_version: str = "v1",
) -> str:
    """Return a YAML document for each topic.

    Args:
        topics: the declared topics.
        cluster: name of the ``Kafka`` resource.
        replicas: copies of each partition. With three or more, a record is acknowledged when two copies
            exist.
        namespace: the cluster's namespace; by default the one in which the manifests are applied.
        api_version: the version of ``kafka.strimzi.io``: ``v1`` since Strimzi 0.49, ``v1beta2`` before.
    """
    return "".join(_manifest(topic, cluster, replicas, namespace, api_version) for topic in topics)


def _manifest(topic: TopicSpec, cluster: str, replicas: int, namespace: str | None, api_version: str) -> str:
    lines = [
        "---",
        f"apiVersion: kafka.strimzi.io/{api_version}",
        "kind: KafkaTopic",
        "metadata:",
        f"  name: {topic.name}",
        *([f"  namespace: {json.dumps(namespace)}"] if namespace else []),
        "  labels:",
        f"    strimzi.io/cluster: {json.dumps(cluster)}",
        "spec:",
        f"  partitions: {topic.partitions}",
        f"  replicas: {replicas}",
        "  config:",
        f"    cleanup.policy: {topic.cleanup_policy}",
        f"    retention.ms: {-1 if topic.retention_ms is None else topic.retention_ms}",
        f"    max.message.bytes: {topic.max_message_bytes}",
        f"    min.insync.replicas: {2 if replicas > 2 else 1}",
    ]
    return "\n".join(lines) + "\n"
