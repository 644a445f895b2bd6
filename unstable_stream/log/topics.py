"""Read the topics' declarations in ``topics/*.toml``, and write them for Strimzi's topic operator."""

import functools
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from unstable_stream.errors import EventLogError
from unstable_stream.events import EVENT_TYPES
from unstable_stream.log.port import TopicSpec

_PACKAGE = Path(__file__).resolve().parents[1]
# In a checkout the files lie at the top level, where people look for them; a wheel contains a copy.
TOPICS_DIR = _PACKAGE / "_topics" if (_PACKAGE / "_topics").is_dir() else _PACKAGE.parent / "topics"


@functools.cache
def load_topics(directory: Path = TOPICS_DIR) -> Mapping[str, TopicSpec]:
    """Return every declared topic by name.

    Raises:
        EventLogError: a file is malformed; the message names the file and the field.
    """
    specs: dict[str, TopicSpec] = {}
    for path in sorted(directory.glob("*.toml")):
        try:
            spec = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), TopicSpec)
        except (ValueError, RecursionError) as error:  # also of a field of the wrong type
            raise EventLogError(f"{path}: {error}") from error
        if spec.name != path.stem:
            raise EventLogError(f"{path}: name = {spec.name!r} must equal the file name")
        events = tuple(name for name, event in EVENT_TYPES.items() if spec.name == event.TOPIC)
        specs[spec.name] = replace(spec, events=events)
    if not specs:
        raise EventLogError(f"no topic files in {directory}: the installation is incomplete, reinstall it")
    return specs


def manifests(
    topics: Iterable[TopicSpec],
    cluster: str,
    *,
    replicas: int = 3,
    namespace: str | None = None,
    api_version: str = "v1",
) -> str:
    """Return a ``KafkaTopic`` resource for each topic, as YAML documents.

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
