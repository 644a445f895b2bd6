"""What aiokafka says by itself, cut down to what a person at a terminal needs.

In an outage it logs several errors a second, and a rebalance as a warning. What matters reaches the caller
as an exception; so trouble is passed on, to the logger ``unstable_stream.kafka``, only if it lasts, and once
a minute; what aiokafka itself did not expect, at once. Whoever configures the logger ``aiokafka`` gets
everything there instead, but never a login: debug messages show requests, and a login holds a password.
"""

import logging
import time
from typing import Final

__all__ = ["curb_aiokafka"]

_BLIP_S: Final = 3.0  # a group that moves, a topic that is being made, a leader that changes
_QUIET_S: Final = 10.0  # without a message, trouble is over
_AGAIN_S: Final = 60.0
_ORDINARY: Final = (
    "Heartbeat failed for group",
    "OffsetCommit failed for group",
)  # while members come and go
_log = logging.getLogger("unstable_stream.kafka")


class _Digest(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._since = self._last = self._said = -_AGAIN_S

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            _log.error("Kafka client: %s: %s: %s", record.getMessage(), type(error).__name__, error)
            return
        if str(record.msg).startswith(_ORDINARY):
            return
        if now - self._last > _QUIET_S:
            self._since = now
        self._last = now
        if now - self._since >= _BLIP_S and now - self._said >= _AGAIN_S:
            self._said = now
            trouble_s = round(now - self._since)
            _log.warning("Kafka client: trouble for %d s, trying again: %s", trouble_s, record.getMessage())


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
