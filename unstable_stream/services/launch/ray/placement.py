"""The plan of a run on Ray: what the cluster has, and a reservation of what the plan wants.

GPUs are reserved in one placement group before any actor starts. So a run that finds no GPU is told so in
time, instead of an actor that waits for ever, and two parts never wait for what the other holds.

A process of the launcher's owns the group (:mod:`unstable_stream.services.launch.ray.keeper`), and it ends
with the launcher. Its services find plan and group by environment variables.
"""

import os
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec
import ray
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from unstable_stream.errors import ConfigError, ServiceError
from unstable_stream.runs.placement import Machine, Placement, Share
from unstable_stream.services.launch.plan import RunPlan, this_machine
from unstable_stream.services.launch.ray.cluster import start_local, stop_local

PLACEMENT_VARIABLE: Final = "UNSTABLE_STREAM_PLACEMENT"
GROUP_VARIABLE: Final = "UNSTABLE_STREAM_PLACEMENT_GROUP"

_DEADLINE_S: Final = 60.0
"""Seconds for nodes to join, for a node to describe itself, and for a reservation to be granted."""
_POLL_S: Final = 1.0
_HEAD: Final = "node:__internal_head__"
"""The resource that Ray gives its head."""


def plan_on_cluster(plan: Callable[[list[Machine]], RunPlan], *, deadline_s: float = _DEADLINE_S) -> RunPlan:
    """Plan for the machines that Ray has now; wait for others that join as long as the plan is refused.

    Args:
        plan: makes a plan for machines, or raises :class:`ConfigError`.
        deadline_s: seconds to wait.

    Raises:
        ConfigError: the plan is refused.
        ServiceError: a machine of the cluster does not describe itself.
    """
    end = time.monotonic() + deadline_s
    while True:
        try:
            return plan(cluster_machines(deadline_s))
        except ConfigError:
            if time.monotonic() > end:
                raise
        time.sleep(_POLL_S)


def look_at_cluster(deadline_s: float = _DEADLINE_S) -> list[Machine]:
    """Connect to the cluster that ``RAY_ADDRESS`` names, return its machines, and disconnect.

    Raises:
        ServiceError: it cannot be reached, or a machine does not describe itself.
    """
    start_local()
    try:
        return cluster_machines(deadline_s)
    finally:
        stop_local()


def cluster_machines(deadline_s: float = _DEADLINE_S) -> list[Machine]:
    """Return the machines of the cluster, Ray's head last; each with GPUs is asked for their memory.

    The head carries Ray's control process, and often the launcher: it gets the least work. The order is
    the same each time, so that a run that is resumed has its parts where they were.
    """
    nodes = sorted(
        (node for node in ray.nodes() if node["Alive"]),
        key=lambda node: (_HEAD in node["Resources"], node["NodeManagerHostname"], node["NodeID"]),
    )
    asked = {
        node["NodeID"]: ray.remote(this_machine)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))
        .remote()
        for node in nodes
        if node["Resources"].get("GPU", 0) >= 1
    }
    try:
        answers = dict(zip(asked, ray.get(list(asked.values()), timeout=deadline_s), strict=True))
    except ray.exceptions.GetTimeoutError as error:
        raise ServiceError(
            f"a machine of the Ray cluster did not describe itself within {deadline_s:g} s: is "
            "unstable_stream installed on all of them, and is one out of memory or disk?"
        ) from error
    except ray.exceptions.RayError as error:
        raise ServiceError(f"a machine of the Ray cluster could not describe itself: {error}") from error
    machines = []
    for node in nodes:
        found = answers.get(node["NodeID"], Machine())
        # Ray's own count: it may be told of fewer GPUs than there are.
        machines.append(
            msgspec.structs.replace(
                found,
                gpus=int(node["Resources"].get("GPU", 0)),
                cpus=int(node["Resources"].get("CPU", 0)),
                node=node["NodeID"],
                host=node["NodeManagerHostname"],
            )
        )
    return machines


def reserve(placement: Placement, *, deadline_s: float = _DEADLINE_S) -> dict[str, str]:
    """Reserve the plan's GPUs; return the environment variables by which services find it.

    Raises:
        ServiceError: the GPUs were not free within the deadline; says what the cluster has.
    """
    variables = {PLACEMENT_VARIABLE: msgspec.json.encode(placement).decode()}
    if not placement.uses_gpus:
        return variables
    name = f"run-{uuid.uuid4().hex}"
    bundles = [{"GPU": share.num_gpus} for share in placement.shares if share.num_gpus > 0]
    group = placement_group(bundles, strategy="SPREAD" if placement.spread else "PACK", name=name)
    _await_group(group, deadline_s)
    return variables | {GROUP_VARIABLE: name}


def planned() -> Placement:
    """Return the plan of this service's launcher."""
    return msgspec.json.decode(os.environ[PLACEMENT_VARIABLE], type=Placement)


def actor_options(placement: Placement, share: Share, *, deadline_s: float = _DEADLINE_S) -> dict[str, Any]:
    """Return the options of Ray for the actor of one part, once its reservation stands.

    A part on a CPU goes to another machine if its own was lost.

    Raises:
        ServiceError: the machine with the reserved GPUs was lost and no other took its place.
    """
    options: dict[str, Any] = {"num_cpus": 0, "num_gpus": share.num_gpus}
    strategy = _strategy(placement, share, deadline_s)
    if strategy is None:
        return options
    if share.num_gpus == 0:
        # A byte, since Ray puts an actor that asks for nothing on any machine, whichever it should prefer.
        options["memory"] = 1
    return {**options, "scheduling_strategy": strategy}


def beside(placement: Placement, share: Share, *, deadline_s: float = _DEADLINE_S) -> dict[str, Any]:
    """Return the options of an actor that wants no more than to be on the machine of a part."""
    return {**actor_options(placement, share, deadline_s=deadline_s), "num_gpus": 0}


def on_node(node: str) -> dict[str, Any]:
    """Return the options of an actor that computes on no GPU and prefers the machine with this id of Ray."""
    # A byte, since Ray puts an actor that asks for nothing on any machine, whichever it should prefer.
    return {
        "num_cpus": 0,
        "num_gpus": 0,
        "memory": 1,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True),
    }


def _strategy(placement: Placement, share: Share, deadline_s: float) -> Any:
    if share.num_gpus == 0:
        machine = placement.machines[share.machine]
        alone = len(placement.machines) == 1 or not machine.node
        return None if alone else NodeAffinitySchedulingStrategy(machine.node, soft=True)
    group = get_placement_group(os.environ[GROUP_VARIABLE])
    _await_group(group, deadline_s)
    index = [other.service for other in placement.shares if other.num_gpus > 0].index(share.service)
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def _await_group(group: PlacementGroup, deadline_s: float) -> None:
    if group.wait(timeout_seconds=deadline_s):
        return
    total = ray.cluster_resources().get("GPU", 0.0)
    free = ray.available_resources().get("GPU", 0.0)
    wanted = ", ".join(f"{bundle['GPU']:g}" for bundle in group.bundle_specs)
    raise ServiceError(
        f"no GPU for the run within {deadline_s:g} s: it wants {wanted} (learner and engines), and of the "
        f"cluster's {total:g} GPUs {free:g} are free. Wait for what holds them, or ask for less: "
        "learner.num_gpus, engine.num_gpus, collector.num_actors"
    )
