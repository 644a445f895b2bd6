"""Topic ``runs``: written by the launcher, read by every service."""

from typing import Any

import msgspec

from unstable_stream.events.envelope import Event, Int64

__all__ = ["RunFinished", "RunResumed", "RunStarted"]


class RunStarted(Event, frozen=True, kw_only=True, tag="run-started"):
    """A run exists, with everything needed to repeat it. Natural key: the run id."""

    TOPIC = "runs"

    name: str
    """Display name."""
    seed: Int64
    """Every seed of the run is derived from this one."""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    """The resolved configuration, defaults filled in."""
    package_version: str = ""
    """Version of unstable_stream."""
    parent_run_id: str | None = None
    """The run this one was forked from, or whose steps it trains on; ``None``: neither."""
    parent_update: int | None = None
    """The update of the parent at which it was forked; updates are numbered on from it. A run that has
    a parent and here ``None`` begins anew, and trains on the parent's replayed steps instead of games."""
    parent_games: int = 0
    """Training games the parent had started by then; games are numbered on from there, so seeds are new."""

    @property
    def replays(self) -> bool:
        """Whether it trains on the replayed steps of its parent and plays no games."""
        return self.parent_run_id is not None and self.parent_update is None


class RunResumed(Event, frozen=True, kw_only=True, tag="run-resumed"):
    """A stopped or crashed run goes on. Natural key: how many times it had been resumed before."""

    TOPIC = "runs"

    resumption: int
    """1 for the first resumption."""
    config: dict[str, Any] = msgspec.field(default_factory=dict)
    """The resolved configuration the run goes on with."""
    package_version: str = ""
    """Version of unstable_stream."""


class RunFinished(Event, frozen=True, kw_only=True, tag="run-finished"):
    """A run came to an end. Natural key: how many times it had been resumed."""

    TOPIC = "runs"

    outcome: str
    """``completed``, ``stopped`` (by a person) or ``failed``."""
    reason: str = ""
    """Why it ended."""
    updates: int = 0
    """Learner updates done."""
