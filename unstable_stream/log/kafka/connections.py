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
"""

import asyncio
import socket
from typing import Any, Final

from aiokafka import conn
from aiokafka.protocol.fetch import FetchRequest

__all__ = ["GONE_S", "use_own_connections"]

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
