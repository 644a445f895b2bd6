"""Ray: a private instance for a run on one machine, or the cluster that ``RAY_ADDRESS`` names;
the machine of an actor, and the record of what of a run computes where.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import ray

from unstable_stream.errors import ServiceError
from unstable_stream.events import PartChanged, event_id

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
                ray.init(
                    address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR
                )
                return address
            with _without_what_is_not_needed():
                context = ray.init(
                    address="local",  # never an instance of another user of this machine
                    namespace=_NAMESPACE,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=_OBJECT_STORE_BYTES,
                )
            return str(context.address_info["gcs_address"])
        except ServiceError:
            raise
        except Exception as error:  # Ray raises bare ones, e.g. when a busy machine is slow
            ray.shutdown()
            if attempt == _ATTEMPTS or isinstance(error, ConnectionError | ValueError):
                raise ServiceError(f"Ray did not start: {error}") from error
    raise AssertionError("unreachable")


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
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
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


DRAINED: Final = "its machine is being drained"
"""The reason for which a part goes from one machine to another before it is lost."""

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
