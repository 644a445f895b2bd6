"""Connect to a Kafka cluster: shared client settings, starting clients, and repeating failed requests."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from aiokafka import conn
from aiokafka import errors as kafka
from aiokafka.conn import create_conn
from aiokafka.protocol.fetch import FetchRequest

from unstable_stream.errors import ConfigError
from unstable_stream.log.kafka.errors import is_passing, translated
from unstable_stream.log.kafka.location import KafkaLocation

T = TypeVar("T")

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
    """Notices a broker whose machine is gone.

    A machine that loses its power or its link says nothing: the connection stays, and each request waits for
    its time-out. aiokafka closes a connection after that, but not one that it asked for metadata, and it
    opens one connection after the other. So a client that asked a vanished broker again and again stood still
    for minutes. Here the operating system ends a connection whose other side has not acknowledged anything
    for :data:`GONE_S`, and opening one takes no longer than that.
    """

    async def connect(self) -> Any:
        async with asyncio.timeout(GONE_S):
            reader, writer = await super().connect()
        connected = writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        # A follower refuses this version; it answers later ones from a log that may be shorter.
        lowest, highest = self._versions[FetchRequest.API_KEY]
        self._versions[FetchRequest.API_KEY] = lowest, min(highest, _FETCH_FROM_LEADERS)
        return reader, writer


_BLIP_S: Final = 3.0  # a rebalance, a topic in creation, a new leader
_QUIET_S: Final = 10.0  # after this time without a message, trouble is over
_AGAIN_S: Final = 60.0
_ORDINARY: Final = (
    "Heartbeat failed for group",
    "OffsetCommit failed for group",
)  # while members join and leave
_log = logging.getLogger("unstable_stream.kafka")


class _Digest(logging.Handler):
    """Reduces aiokafka's own log messages to those that a person at a terminal needs.

    In an outage aiokafka logs several errors a second, and it logs a rebalance as a warning. Important errors
    reach the caller as exceptions. So an error message is passed to the logger ``unstable_stream.kafka`` only
    if the trouble lasts, and only once a minute. An error that aiokafka did not expect is passed on at once.
    A user who configures the logger ``aiokafka`` gets all messages there instead, except logins: debug
    messages show requests, and a login holds a password.
    """

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


def set_up_aiokafka() -> None:
    """Have all clients of this process open our connections, and say less unless a logger is configured."""
    conn.AIOKafkaConnection = _Connection
    logging.getLogger("aiokafka.conn").addFilter(_without_logins)
    logger = logging.getLogger("aiokafka")
    if logger.level == logging.NOTSET and not logger.handlers:
        logger.addHandler(_Digest())
        logger.propagate = False


_REQUEST_TIMEOUT_MS: Final = 20_000  # longer than a rebalance, which answers a request at its end
_RETRY_MS: Final = 50
_CLOSE_TIMEOUT_S: Final = 10.0


class Brokers:
    """The connection settings and time-outs of a cluster."""

    def __init__(self, location: KafkaLocation, connect_timeout_s: float, delivery_timeout_s: float) -> None:
        """Raises :class:`ConfigError` if the certificates cannot be read."""
        self.location = location
        self.connect_timeout_s = connect_timeout_s
        self.delivery_timeout_s = delivery_timeout_s
        self._reached = False
        self._ssl_context = _ssl_context(location) if location.uses_tls else None

    def settings(self) -> dict[str, Any]:
        """Return the arguments that every aiokafka client takes."""
        location = self.location
        return self._login() | {
            "bootstrap_servers": list(location.servers),
            "client_id": "unstable_stream",
            "request_timeout_ms": _REQUEST_TIMEOUT_MS,
            "retry_backoff_ms": _RETRY_MS,
        }

    def _login(self) -> dict[str, Any]:
        location = self.location
        login: dict[str, Any] = {
            "security_protocol": location.security_protocol,
            "ssl_context": self._ssl_context,
        }
        if location.uses_sasl:
            login |= {
                "sasl_mechanism": location.sasl_mechanism,
                "sasl_plain_username": location.sasl_username,
                "sasl_plain_password": location.sasl_password,
            }
        return login

    async def start(self, start: Callable[[], Awaitable[T]], doing: str) -> T:
        """Start a client; try again until a broker answers.

        Raises:
            LogUnavailableError: no broker answered within ``connect_timeout_s``, or, after a first answer,
                within ``delivery_timeout_s``.
            EventLogError: login or TLS failed.
        """
        within_s = self.delivery_timeout_s if self._reached else self.connect_timeout_s
        started = await self._until(start, doing, within_s, diagnose=True)
        self._reached = True
        return started

    async def ask(self, request: Callable[[], Awaitable[T]], doing: str) -> T:
        """Return the answer to a request; repeat it while brokers restart or leaders move.

        Raises the :class:`EventLogError` family.
        """
        return await self._until(request, doing, self.delivery_timeout_s, diagnose=False)

    async def _until(
        self, request: Callable[[], Awaitable[T]], doing: str, within_s: float, *, diagnose: bool
    ) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        pause_s = _RETRY_MS / 1000
        last: BaseException = TimeoutError()
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    return await request()
            except (kafka.KafkaError, OSError) as error:
                if not isinstance(error, TimeoutError):
                    last = error
                if diagnose and isinstance(error, kafka.KafkaConnectionError):
                    # A client that cannot start does not tell the reason.
                    last = await self._reason(deadline) or kafka.KafkaConnectionError(
                        "a broker answers, but then ends the connection"
                    )
                if not is_passing(last) or loop.time() + pause_s >= deadline:
                    raise translated(last, self.location, doing) from last
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    async def _reason(self, deadline: float) -> BaseException | None:
        """Return the reason of the first broker that refuses us, or the reason why no broker answers."""
        reason: BaseException | None = None
        for server in self.location.servers:
            host, _, port = server.rpartition(":")
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await create_conn(
                        host.strip("[]"), int(port), request_timeout_ms=_REQUEST_TIMEOUT_MS, **self._login()
                    )
            except (kafka.KafkaError, OSError) as error:
                reason = error
                if not is_passing(error):
                    break
            else:
                await connection.close()
                return None
        return reason


def _ssl_context(location: KafkaLocation) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=location.ssl_cafile)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"Kafka option ssl_cafile = {location.ssl_cafile!r}: no certificate in it ({error})"
        ) from error
    context.check_hostname = location.ssl_check_hostname
    if location.ssl_certfile is not None:
        try:
            # Without a password OpenSSL would ask for one on the terminal. With an empty password it fails.
            context.load_cert_chain(location.ssl_certfile, location.ssl_keyfile, location.ssl_password or "")
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"Kafka options ssl_certfile = {location.ssl_certfile!r}, ssl_keyfile = "
                f"{location.ssl_keyfile!r}: not a certificate and its key, or the key's password is wrong "
                f"({error})"
            ) from error
    return context


class Lazy(Generic[T]):
    """An object that is made at its first use and closed once."""

    def __init__(self, make: Callable[[], Awaitable[T]], close: Callable[[T], Awaitable[object]]) -> None:
        self._make = make
        self._close = close
        self._made: T | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> T:
        """Return the object; make it if there is none."""
        if self._made is None:
            async with self._lock:
                if self._made is None:
                    self._made = await self._make()
        return self._made

    def take(self) -> T | None:
        """Take the object out; the next use makes a new one. The caller closes the old one."""
        made, self._made = self._made, None
        return made

    async def close(self) -> None:
        """Close the object if there is one."""
        made = self.take()
        if made is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._close(made)
