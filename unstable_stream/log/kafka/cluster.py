"""Connect to a Kafka cluster: shared client settings, starting clients, and repeating failed requests."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from aiokafka import errors as kafka
from aiokafka.conn import create_conn

from unstable_stream.errors import ConfigError
from unstable_stream.log.kafka.errors import is_passing, translated
from unstable_stream.log.kafka.location import KafkaLocation

T = TypeVar("T")

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
