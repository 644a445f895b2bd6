"""A run's configuration as it may be published: with names of secrets, and no secret."""

import re
from collections.abc import Mapping
from typing import Any, Final

from unstable_stream.errors import ConfigError
from unstable_stream.runs.config import RunConfig

LEFT_OUT: Final = "(left out)"
"""In place of a value whose key names a secret."""

_SECRET_WORDS: Final = frozenset({"password", "passwd", "secret", "token", "key", "apikey", "credentials"})
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_LOOKS_LIKE_A_KEY: Final = re.compile(
    r"(sk|pk|gsk|hf|xai|r8|ghp)_\w{8,}|[0-9a-f]{24,}|(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{24,}"
)
_LOGIN: Final = re.compile(r"(?<=://)[^/@\s]+@")
_ARGUMENT: Final = re.compile(
    r"(\w*(?:password|secret|token|api_?key)\s*=\s*)(\"[^\"]*\"|'[^']*'|[^,)&\s]+)", re.IGNORECASE
)
"""In a reference to an extension that is one string, ``module:Name(token='…')``, or in an address."""


def published_config(config: RunConfig) -> dict[str, Any]:
    """Return a run's configuration as JSON values that may be published.

    The values of keys that name a secret are left out: arguments of extensions and engines may be such. So is
    the login in an address.

    Raises:
        ConfigError: an ``api_key_env`` is not the name of an environment variable, but may be a key.
    """
    values: dict[str, Any] = _published(config.model_dump(mode="json"), "")
    return values


def _published(value: Any, where: str) -> Any:  # JSON
    if isinstance(value, Mapping):
        return {name: _entry(name, each, f"{where}.{name}".lstrip(".")) for name, each in value.items()}
    if isinstance(value, list):
        return [_published(each, f"{where}.{place}") for place, each in enumerate(value)]
    return _ARGUMENT.sub(rf"\1{LEFT_OUT}", _LOGIN.sub("", value)) if isinstance(value, str) else value


def _entry(name: str, value: Any, where: str) -> Any:  # JSON
    if name.endswith("_env") and isinstance(value, str):
        if not _VARIABLE.fullmatch(value) or _LOOKS_LIKE_A_KEY.fullmatch(value):
            # Do not repeat it: it may be the key.
            raise ConfigError(
                f"{where} of the run is no name of an environment variable and may be a key, so nothing is "
                "published: revoke the key if it is one; expected a name such as OPENROUTER_API_KEY"
            )
        return value
    if isinstance(value, str) and value and _SECRET_WORDS.intersection(re.split(r"[_\-.]", name.lower())):
        return LEFT_OUT
    return _published(value, where)
