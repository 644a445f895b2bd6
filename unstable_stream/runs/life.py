"""Whether a run that has not ended still lives, from the last record of it.

The launcher of a run reports at least once a minute on topic ``metrics``
(:mod:`unstable_stream.services.tracking.service_reports`), however long an update takes. So a run that has
recorded nothing for ten minutes is lost: its launcher was killed, or its machine is gone. It can be resumed.
"""

from typing import Final

LOST_AFTER_MS: Final = 10 * 60_000
_UNITS: Final = ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"))


def state_of(outcome: str | None, heard_at_ms: int, now_ms: int) -> str:
    """Return the state of a run.

    Args:
        outcome: how it ended; ``None``: no end is recorded.
        heard_at_ms: Unix milliseconds of the last record of it.
        now_ms: Unix milliseconds.

    Returns:
        The outcome; without one, ``running`` or ``lost``.
    """
    if outcome is not None:
        return outcome
    return "lost" if now_ms - heard_at_ms > LOST_AFTER_MS else "running"


def silence_of(state: str, heard_at_ms: int, now_ms: int) -> str:
    """Return for how long a lost run has recorded nothing, as ``silent for 12 min``; empty for others."""
    if state != "lost":
        return ""
    silent_ms = now_ms - heard_at_ms
    size, unit = next((size, unit) for size, unit in _UNITS if silent_ms >= 2 * size or unit == "min")
    return f"silent for {silent_ms // size:,} {unit}"
