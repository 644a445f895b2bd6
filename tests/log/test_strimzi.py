"""The manifests say what is declared, and are what Strimzi's operator takes."""

import pytest
import yaml

from unstable_stream.log.contracts.strimzi import manifests
from unstable_stream.log.topics import load_topics


def test_the_manifests_are_the_declaration() -> None:
    documents = list(yaml.safe_load_all(manifests(load_topics().values(), "my-cluster", namespace="kafka")))
    assert [each["metadata"]["name"] for each in documents] == list(load_topics())
    for each in documents:
        spec = load_topics()[each["metadata"]["name"]]
        assert (each["apiVersion"], each["kind"]) == ("kafka.strimzi.io/v1", "KafkaTopic")
        assert each["metadata"]["labels"] == {"strimzi.io/cluster": "my-cluster"}
        assert each["metadata"]["namespace"] == "kafka"
        assert each["spec"] == {
            "partitions": spec.partitions,
            "replicas": 3,
            "config": {
                "cleanup.policy": spec.cleanup_policy,
                "retention.ms": -1 if spec.retention_ms is None else spec.retention_ms,
                "max.message.bytes": spec.max_message_bytes,
                "min.insync.replicas": 2,
            },
        }


@pytest.mark.parametrize(("replicas", "in_sync"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_records_count_as_written_when_most_copies_have_them(replicas: int, in_sync: int) -> None:
    text = manifests(load_topics().values(), "true", replicas=replicas, api_version="v1beta2")
    for each in yaml.safe_load_all(text):
        assert each["spec"]["config"]["min.insync.replicas"] == in_sync
        assert each["metadata"]["labels"]["strimzi.io/cluster"] == "true"  # a text, whatever it looks like
        assert "namespace" not in each["metadata"]
        assert each["apiVersion"] == "kafka.strimzi.io/v1beta2"
