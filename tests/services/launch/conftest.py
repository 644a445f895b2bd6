"""Clusters of Ray on this machine."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import pytest
from ray.cluster_utils import Cluster

Clusters: TypeAlias = Callable[..., Cluster]
"""Makes a cluster: the resources of its head, and of the other machines."""


def patiently(make: Callable[[], Any]) -> Any:  # Ray's have no type
    for _ in range(4):
        # Ray gives itself half a minute, also on a busy machine, and raises bare exceptions.
        with suppress(Exception):
            return make()
    return make()


@pytest.fixture
def ray_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clusters]:
    """Return what makes a cluster, to which ``RAY_ADDRESS`` then leads; each is ended with the test."""
    made: list[Cluster] = []

    def make(head: Mapping[str, Any], *others: Mapping[str, Any]) -> Cluster:
        cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=dict(head)))
        made.append(cluster)
        for machine in others:
            patiently(partial(cluster.add_node, **machine))
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        return cluster

    yield make
    for cluster in made:
        cluster.shutdown()
