"""Reduce aiokafka's own log messages to those that a person at a terminal needs.

In an outage aiokafka logs several errors a second, and it logs a rebalance as a warning. Important errors
reach the caller as exceptions. So an error message is passed to the logger ``unstable_stream.kafka`` only if
the trouble lasts, and only once a minute. An error that aiokafka did not expect is passed on at once. A user
who configures the logger ``aiokafka`` gets all messages there instead, except logins: debug messages show
requests, and a login holds a password.
"""

import logging
import time
from typing import Final

__all__ = ["curb_aiokafka"]

_BLIP_S: Final = 3.0  # a rebalance, a topic in creation, a new leader
_QUIET_S: Final = 10.0  # after this time without a message, trouble is over
_AGAIN_S: Final = 60.0
_ORDINARY: Final = (
    "Heartbeat failed for group",
    "OffsetCommit failed for group",
)  # while members join and leave
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
    """Install this once in a process, unless aiokafka's logger is configured already."""
    logging.getLogger("aiokafka.conn").addFilter(_without_logins)
    logger = logging.getLogger("aiokafka")
    if logger.level == logging.NOTSET and not logger.handlers:
        logger.addHandler(_Digest())
        logger.propagate = False
