"""The machine of an actor, and the record of what of a run computes where, and why that changed."""

import socket
import time
from dataclasses import dataclass
from typing import Final

import ray

from unstable_stream.events import PartChanged, event_id

__all__ = ["DRAINED", "NOWHERE", "Whereabouts", "part_changed", "whereabouts"]


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
