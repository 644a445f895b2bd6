"""Topic ``metrics``: written by any service, read by the archive and the live view."""

import msgspec

from unstable_stream.events.envelope import Event


class Metrics(Event, frozen=True, kw_only=True, tag="metrics"):
    """Scalars one source measured at one moment. Natural key: source, sequence or time."""

    TOPIC = "metrics"

    source: str
    """The service that measured, e.g. ``engine-0``."""
    values: dict[str, float] = msgspec.field(default_factory=dict)
    """Metric name to value, e.g. ``collection-SimpleTak-v0-train/win-rate``."""
    update: int | None = None
    """The learner update the values belong to; ``None``: none."""

    @property
    def key(self) -> str:
        return self.source
