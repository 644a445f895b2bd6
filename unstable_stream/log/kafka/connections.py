"""Connections that notice a broker whose machine is gone, and over which leaders alone are read.

A machine that loses its power or its link says nothing: the connection stays, and each request waits for its
time-out. aiokafka closes a connection after that, but not one that it asked for metadata, and it opens one
connection after the other. So a client that asked a vanished broker again and again stood still for minutes.
Here the operating system ends a connection whose other side has not acknowledged anything for
:data:`GONE_S`, and opening one takes no longer than that.

A broker gives records of a partition that it only follows to a client whose requests to fetch are of version
11 or later, so that the client may read in its own data centre (KIP-392). A leader that died, lost its place
in an unclean election and came back as a follower would be read on by a client that had asked for nothing
meanwhile and has not heard of the election. So these connections speak the version before: a follower
refuses, and the client asks who leads.

aiokafka's own log messages are reduced to those that a person at a terminal needs.

In an outage aiokafka logs several errors a second, and it logs a rebalance as a warning. Important errors
reach the caller as exceptions. So an error message is passed to the logger ``unstable_stream.kafka`` only if
the trouble lasts, and only once a minute. An error that aiokafka did not expect is passed on at once. A user
who configures the logger ``aiokafka`` gets all messages there instead, except logins: debug messages show
requests, and a login holds a password.
"""

import asyncio
import logging
import socket
import time
from typing import Any, Final

from aiokafka import conn
from aiokafka.protocol.fetch import FetchRequest

GONE_S: Final = 10
"""Seconds after which a silent broker is given up: as long as a cluster needs to elect leaders without it."""
_PROBE_AFTER_S: Final = 4
_PROBE_EVERY_S: Final = 2
_FETCH_FROM_LEADERS: Final = 10
"""The last version of the request to fetch that a follower refuses."""
_OPTIONS: Final = {
    # What was sent and not acknowledged for so long ends the connection. Linux alone has it.
    "TCP_USER_TIMEOUT": GONE_S * 1000,
    # A connection that only waits for an answer sends nothing: probes are acknowledged, too.
    "TCP_KEEPIDLE": _PROBE_AFTER_S,
    "TCP_KEEPINTVL": _PROBE_EVERY_S,
    "TCP_KEEPCNT": (GONE_S - _PROBE_AFTER_S) // _PROBE_EVERY_S,
}


class _Connection(conn.AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    async def connect(self) -> Any:
        async with asyncio.timeout(GONE_S):
            reader, writer = await super().connect()
        connected = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        lowest, highest = self._versions[FetchRequest.API_KEY]
        self._versions[FetchRequest.API_KEY] = lowest, min(highest, _FETCH_FROM_LEADERS)
        return reader, writer


def use_own_connections() -> None:
    """Have all clients of this process open connections of this kind."""
    conn.AIOKafkaConnection = _Connection


# -- messages ---------------------------------------------------------------------------------------

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
