"""Ray: a private instance for a run on one machine, or the cluster that ``RAY_ADDRESS`` names; what it has, a
reservation of what a plan wants, and the record of what of a run computes where.

GPUs are reserved in one placement group before any actor starts. So a run that finds no GPU is told so in
time, instead of an actor that waits for ever, and two parts never wait for what the other holds.

A process of the launcher's owns the group (:mod:`unstable_stream.services.launch.ray.keeper`), and it ends
with the launcher. Its services find plan and group by environment variables.
"""

import logging
import os
import secrets
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import ray
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from unstable_stream.errors import ConfigError, ServiceError
from unstable_stream.events import PartChanged, event_id
from unstable_stream.runs.placement import Machine, Placement, Share
from unstable_stream.services.launch.plan import RunPlan, this_machine

_ATTEMPTS = 3
# By default Ray gives its node 30 s to start, even on a busy machine.
_REACH_S = 10.0
"""Seconds for a connection to the cluster's head."""
_OBJECT_STORE_BYTES = 256 * 1024 * 1024
# Only short token lists pass through Ray; the default would take a third of the machine's memory.

_NAMESPACE = "unstable-stream"
# Of launcher and services alike: names, such as those of placement groups, are known within one.

_NOT_NEEDED: Final = ("start_monitor", "start_log_monitor", "start_api_server")
"""Starters of Ray's autoscaler, of the process that passes workers' output on to drivers, and of the
dashboard's, which without one only reports usage. Nothing here asks for any of them; together they take two
core-seconds of every start, and Ray is not ready before the last of them is."""

PLACEMENT_VARIABLE: Final = "UNSTABLE_STREAM_PLACEMENT"
GROUP_VARIABLE: Final = "UNSTABLE_STREAM_PLACEMENT_GROUP"

_DEADLINE_S: Final = 60.0
"""Seconds for nodes to join, for a node to describe itself, and for a reservation to be granted."""
_POLL_S: Final = 1.0
_HEAD: Final = "node:__internal_head__"
"""The resource that Ray gives its head."""

_starting = threading.Lock()


def start_local() -> str:
    """Start Ray in the background, unless ``RAY_ADDRESS`` names a cluster; return its address."""
    with _starting:
        return _start()


def _start() -> str:
    address = os.environ.get("RAY_ADDRESS")
    # Ray notices at length that it hides GPUs from actors that ask for none. With the variable it does
    # neither; ours are told by their share whether to compute on one.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Set before it starts, since off the main thread Ray warns that it leaves SIGTERM alone, as it should.
    logging.getLogger("ray").setLevel(logging.ERROR)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if address:
                check_reachable()
                _connect(address)
                return address
            _give_a_token_where_home_is_read_only()
            with _without_what_is_not_needed():
                # Never an instance of another user of this machine.
                context = _connect("local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES)
            return str(context.address_info["gcs_address"])
        except ServiceError:
            raise
        except Exception as error:  # Ray raises bare ones, e.g. when a busy machine is slow
            ray.shutdown()
            if attempt == _ATTEMPTS or isinstance(error, ConnectionError | ValueError):
                raise ServiceError(f"Ray did not start: {error}") from error
    raise AssertionError("unreachable")


def _connect(address: str, **options: object) -> Any:
    return ray.init(
        address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options
    )


def _give_a_token_where_home_is_read_only() -> None:
    # Ray makes a token for strangers to lack, and keeps it in the home or does not start.
    kept = Path.home() / ".ray"
    with suppress(OSError):
        kept.mkdir(exist_ok=True)
    if not os.access(kept, os.W_OK):
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextmanager
def _without_what_is_not_needed() -> Iterator[None]:
    # Ray has options for two of them, but only on the command line. A version that has none of these methods
    # starts all it wants.
    node = getattr(getattr(ray._private, "node", None), "Node", None)
    starters = {name: getattr(node, name) for name in _NOT_NEEDED if hasattr(node, name)}
    for name in starters:
        setattr(node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, starter in starters.items():
            setattr(node, name, starter)


def check_reachable() -> None:
    """Refuse a ``RAY_ADDRESS`` where nothing listens: Ray itself would try for minutes.

    Other forms than ``HOST:PORT``, such as ``auto``, are left to Ray.

    Raises:
        ServiceError: nothing answers there.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise ServiceError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}): start one with `ray start --head`, "
            "or unset RAY_ADDRESS to run on this machine"
        ) from error


def stop_local() -> None:
    """Disconnect from Ray and end the instance that :func:`start_local` started, once it has started."""
    with _starting:
        ray.shutdown()


def connect() -> None:
    """Connect this process to the Ray instance of its launcher (``RAY_ADDRESS``).

    Raises:
        ServiceError: the variable is not set, or no cluster answers there.
    """
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        raise ServiceError("RAY_ADDRESS is not set: start Ray (`ray start --head`) and set it to its address")
    check_reachable()
    try:
        _connect(address)
    except ConnectionError as error:
        # What Ray tells differs from one attempt to the next: the same error must read the same.
        raise ServiceError(
            f"the Ray cluster at RAY_ADDRESS={address} does not answer: look whether its head runs, and "
            "whether Ray runs on this machine"
        ) from error


@dataclass(frozen=True)
class Cluster:
    """The machines that parts of a run can be on."""

    gpus: Mapping[str, float]
    """By Ray's id of the machine: GPUs that nobody has reserved."""
    cpus: Mapping[str, float]
    """Cores of each machine, taken or not."""
    drained: frozenset[str] = frozenset()
    """Machines that will be taken away; they are in the others no more."""


def look_at_nodes() -> Cluster:
    """Return what Ray has now."""
    state = ray._private.state
    drained = frozenset(state.state.get_draining_nodes())
    nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in drained]
    free = state.available_resources_per_node()
    return Cluster(
        gpus={node["NodeID"]: free.get(node["NodeID"], {}).get("GPU", 0.0) for node in nodes},
        cpus={node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in nodes},
        drained=drained,
    )


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The machine of an actor."""

    node: str = ""
    """Ray's id of it; empty: not known."""
    host: str = ""


NOWHERE: Final = Whereabouts()
"""The machine of an actor that has not answered yet."""


def whereabouts() -> Whereabouts:
    """Return where this actor is."""
    return Whereabouts(ray.get_runtime_context().get_node_id(), socket.gethostname())


def part_changed(run_id: str, part: str, change: str, at: Whereabouts, reason: str) -> PartChanged:
    """Return the event of something that happens now; see :class:`PartChanged`."""
    now_ms = time.time_ns() // 1_000_000
    return PartChanged(
        event_id=event_id(run_id, "part-changed", part, change, now_ms),
        run_id=run_id,
        occurred_at_ms=now_ms,
        part=part,
        change=change,
        host=at.host,
        node=at.node,
        reason=reason,
    )


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


ANYWHERE: Final = {"num_cpus": 0, "memory": 1, "scheduling_strategy": "SPREAD"}
"""Options of an actor that computes on no GPU, for any machine that has cores."""


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
