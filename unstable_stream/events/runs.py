"""Topic ``runs``: written by the launcher, read by every service."""

from typing import Any

import msgspec

from unstable_stream.events.envelope import Event, Int64


class ExtensionUse(msgspec.Struct, frozen=True, kw_only=True):
    """Code outside of this package that a run uses, with its version or digest."""

    kind: str
    """The choice it is used for, e.g. ``algorithm``, ``template``, ``environment``."""
    target: str
    """The name in the configuration; a file has its absolute path."""
    distribution: str = ""
    """The installed package that holds it; empty for a module or file beside the run."""
    version: str = ""
    """Version of that package."""
    sha256: str = ""
    """Digest of the source file, or of the object's source if there is no file; empty: no source."""


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

    extensions: tuple[ExtensionUse, ...] = ()
    """Code outside of this package that the configuration names."""

    log_id: str = ""
    """The event log that it began on; ``start_offsets`` mean nothing in another."""
    start_offsets: dict[str, tuple[Int64, ...]] = msgspec.field(default_factory=dict)
    """By topic, the end of each partition when it began: the run has no record below. A topic that is not
    named is read from its beginning."""

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
    extensions: tuple[ExtensionUse, ...] = ()
    """Code outside of this package that the configuration names, as it is now."""


class RunFinished(Event, frozen=True, kw_only=True, tag="run-finished"):
    """A run came to an end. Natural key: how many times it had been resumed."""

    TOPIC = "runs"

    outcome: str
    """``completed``, ``stopped`` (by a person) or ``failed``."""
    reason: str = ""
    """The reason for the end."""
    updates: int = 0
    """Learner updates done."""


class EnginesWanted(Event, frozen=True, kw_only=True, tag="engines-wanted"):
    """A person decided how many engines a run has from now on. Natural key: the moment."""

    TOPIC = "runs"

    engines: int | None = None
    """Their number; ``None``: as configured."""


class EnginesChanged(Event, frozen=True, kw_only=True, tag="engines-changed"):
    """An engine of a run came or went. Natural key: engine, change, moment."""

    TOPIC = "runs"

    engine: str
    """``engine-0``, …; a number that was lost is given again to the one that takes its place."""
    change: str
    """``added`` (it has loaded the model), ``removed`` (in order: it answered what it had been asked) or
    ``lost``."""
    host: str = ""
    """The machine; empty: not known."""
    reason: str = ""
    """The reason for which it came or went."""
    serving: int = 0
    """Number of engines that answer now."""
    node: str = ""
    """Ray's id of the machine; empty: not known."""


class PartChanged(Event, frozen=True, kw_only=True, tag="part-changed"):
    """The learner or a rollout worker of a run came or went; engines have an event of their own. Natural
    key: part, change, moment.
    """

    TOPIC = "runs"

    part: str
    """``learner``, ``rollout-0``, …"""
    change: str
    """``added`` (it answers), ``removed`` (in order) or ``lost``. One that is added twice without having
    been lost ended with the process that had started it."""
    host: str = ""
    """The machine; empty: not known."""
    node: str = ""
    """Ray's id of the machine; empty: not known."""
    reason: str = ""
    """The reason for which it came or went."""
