"""A broker whose machine is gone: nothing comes back, and nobody closes the connection."""

import asyncio
import socket
import sys

import pytest
from aiokafka.conn import create_conn

from unstable_stream.log.kafka import connections
from unstable_stream.log.kafka.connections import GONE_S, use_own_connections


async def test_the_operating_system_ends_a_connection_that_nothing_acknowledges(kafka_bootstrap: str) -> None:
    use_own_connections()
    host, _, port = kafka_bootstrap.rpartition(":")
    connection = await create_conn(host, int(port))
    try:
        opened = connection._writer.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        if sys.platform == "linux":
            limit_ms = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit_ms == GONE_S * 1000
            probing_s = [
                opened.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            ]
            assert probing_s[0] + probing_s[1] * probing_s[2] == GONE_S
    finally:
        await connection.close()


async def test_a_peer_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    use_own_connections()
    monkeypatch.setattr(connections, "GONE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with asyncio.timeout(120):
            with pytest.raises(TimeoutError):
                await create_conn(*silent.getsockname(), request_timeout_ms=60_000)
