"""What aiokafka says by itself, cut down to what a person at a terminal needs.

In an outage it logs several errors a second, and rebalances as warnings. Each kind of message is passed on
to the logger ``unstable_stream.kafka`` at most once a minute, without tracebacks, and what is ordinary not at
all: what matters reaches the caller as an exception. Whoever configures the logger ``aiokafka`` gets
everything there instead, but never a login: debug messages show requests, and a login holds a password.
"""

import logging
import re
import time
from typing import Final

__all__ = ["curb_aiokafka"]

_SILENCE_S: Final = 60.0
_ORDINARY: Final = re.compile(
    r"^(Heartbeat failed for group|OffsetCommit failed for group|LeaveGroup request failed|Topic %s not found"
    r"|Topic %s is not available during|.*member_id was not recognized)"
)
_log = logging.getLogger("unstable_stream.kafka")


class _Digest(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said_at: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        kind = str(record.msg)
        now = time.monotonic()
        if _ORDINARY.match(kind) or now - self._said_at.get(kind, -_SILENCE_S) < _SILENCE_S:
            return
        self._said_at[kind] = now
        error = record.exc_info[1] if record.exc_info else None
        reason = f": {type(error).__name__}: {error}" if error is not None else ""
        _log.warning("Kafka client: %s%s", record.getMessage(), reason)


def _without_logins(record: logging.LogRecord) -> bool:
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(type(argument).__name__.startswith("Sasl") for argument in arguments)


def curb_aiokafka() -> None:
    """Set this up, once in a process, unless somebody has configured aiokafka's logger already."""
    logging.getLogger("aiokafka.conn").addFilter(_without_logins)
    logger = logging.getLogger("aiokafka")
    if logger.level == logging.NOTSET and not logger.handlers:
        logger.addHandler(_Digest())
        logger.propagate = False
