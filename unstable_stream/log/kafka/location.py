"""Read a Kafka location, e.g. ``kafka://host:9092?security_protocol=SSL``: addresses, login and encryption.

Every option may come from the location or from the environment variable ``UNSTABLE_STREAM_KAFKA_<OPTION>``;
the location wins. Passwords come only from the environment, because the log records a run's configuration
with the location in it. No message here repeats text that could be a password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from unstable_stream.errors import ConfigError

SCHEME: Final = "kafka://"
ENVIRONMENT_PREFIX: Final = "UNSTABLE_STREAM_KAFKA_"

_CHOICES: Final = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
    "ssl_check_hostname": ("true", "false"),
}
"""The values of options, of which the first one is the default."""
_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
_OPTIONS: Final = ("security_protocol", "sasl_mechanism", "sasl_username", *_FILES, "ssl_check_hostname")
_SECRETS: Final = ("sasl_password", "ssl_password")
_DEFAULT_PORT: Final = 9092
_EXAMPLE: Final = "kafka://host:9092,other:9092?security_protocol=SASL_SSL&sasl_username=me"


@dataclass(frozen=True, slots=True)
class KafkaLocation:
    """The address and login of a cluster. Printing it shows no password."""

    servers: tuple[str, ...]
    """``host:port`` of some brokers, which tell the others."""
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_cafile: str | None = None
    """``None``: the certificate authorities that this machine trusts."""
    ssl_certfile: str | None = None
    """Our own certificate, for brokers that ask for one."""
    ssl_keyfile: str | None = None
    """``None``: the key is in ``ssl_certfile``."""
    ssl_password: str | None = field(default=None, repr=False)
    """The password of the key file."""
    ssl_check_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        """True if connections are encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """True if a name and a password are needed."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def __str__(self) -> str:
        return SCHEME + ",".join(self.servers)


def parse_location(text: str, environ: Mapping[str, str]) -> KafkaLocation:
    """Return the location in ``text``, completed from ``environ``.

    Raises:
        ConfigError: the text is malformed, an option is unknown or contradicts another, the location holds a
            password, or a password is missing from the environment.
    """
    rest = text.removeprefix(SCHEME)
    # Look for an @ before any message repeats the text: the part before it may be a password, and a password
    # may contain any of the characters that separate the parts.
    if rest == text or "@" in re.sub(r"sasl_username=[^&]*", "", rest):
        raise ConfigError(
            f"a Kafka location looks like {_EXAMPLE!r}, without a password: set "
            f"{_variable('sasl_password')} in the environment, and the name with sasl_username=…"
        )
    servers, _, query = rest.partition("?")
    given = _options(query)
    values = {name: environ[_variable(name)] for name in _OPTIONS if environ.get(_variable(name))} | given
    for name, choices in _CHOICES.items():
        values[name] = _choice(name, values.get(name, choices[0]), choices)
    for name in _FILES:
        _check_file(name, values.get(name))
    check_hostname = values.pop("ssl_check_hostname") == "true"
    secrets: dict[str, Any] = {name: environ.get(_variable(name)) or None for name in _SECRETS}
    location = KafkaLocation(
        _servers(servers.removesuffix("/")), ssl_check_hostname=check_hostname, **secrets, **values
    )
    _check(location, given)
    return location


def _variable(option: str) -> str:
    return ENVIRONMENT_PREFIX + option.upper()


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for number, part in enumerate(filter(None, query.split("&")), start=1):
        name, equals, value = part.partition("=")
        if any(word in name.lower() for word in ("password", "secret", "token")):
            raise ConfigError(
                f"option {number} of the Kafka location is a password: a run's configuration is recorded in "
                f"the log, so set {_variable('sasl_password')} or {_variable('ssl_password')} in the "
                "environment"
            )
        if not equals or not value:
            raise ConfigError(
                f"option {number} of the Kafka location: expected name=value, as in {_EXAMPLE!r}"
            )
        if name not in _OPTIONS:
            raise ConfigError(f"unknown Kafka option {name!r}; known are {', '.join(_OPTIONS)}")
        if name in options:
            raise ConfigError(f"the Kafka location has {name} twice")
        options[name] = unquote(value)  # ``+`` is not changed
    return options


def _servers(text: str) -> tuple[str, ...]:
    servers = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if part.strip().endswith("]") or not colon:
            host, port = part.strip(), str(_DEFAULT_PORT)
        if not host or not port.isdecimal() or not 0 < int(port) < 65536 or re.search(r"[/\s]", host):
            raise ConfigError(f"Kafka server {part!r}: expected host:port, as in {_EXAMPLE!r}")
        servers.append(f"{host}:{int(port)}")
    return tuple(servers)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if choice.lower() == value.lower():
            return choice
    raise ConfigError(f"Kafka option {name} = {value!r}: expected one of {', '.join(choices)}")


def _check_file(name: str, path: str | None) -> None:
    if path is not None and not Path(path).is_absolute():
        raise ConfigError(
            f"Kafka option {name} = {path!r}: expected an absolute path, since workers run in other "
            "directories"
        )
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"Kafka option {name} = {path!r}: there is no such file on this machine")


def _check(location: KafkaLocation, given: Mapping[str, str]) -> None:
    """Refuse options that contradict each other; one from the environment may be for another cluster."""
    protocol = location.security_protocol
    for name in given:
        used = location.uses_sasl if name.startswith("sasl_") else location.uses_tls
        if name != "security_protocol" and not used:
            raise ConfigError(
                f"Kafka option {name} has no effect with security_protocol={protocol}: expected "
                f"{'SASL_SSL or SASL_PLAINTEXT' if name.startswith('sasl_') else 'SSL or SASL_SSL'}"
            )
    if location.uses_sasl and not location.sasl_username:
        raise ConfigError(
            f"security_protocol={protocol} needs sasl_username=… in the Kafka location or "
            f"{_variable('sasl_username')} in the environment"
        )
    if location.uses_sasl and not location.sasl_password:
        raise ConfigError(
            f"security_protocol={protocol} needs the password of {location.sasl_username!r}: set "
            f"{_variable('sasl_password')} in the environment"
        )
    if location.uses_tls and location.ssl_keyfile and not location.ssl_certfile:
        raise ConfigError("Kafka option ssl_keyfile needs ssl_certfile=…, the certificate of that key")
