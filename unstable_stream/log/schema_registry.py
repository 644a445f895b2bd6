"""Register the JSON Schema of each event at a schema registry with Confluent's REST API.

The subject of an event is its header ``ce_type`` without the version, as ``RecordNameStrategy`` has it: a
topic may have several events.

Source: https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

import base64
import functools
import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unstable_stream.console import without_logins
from unstable_stream.errors import ConfigError, EventLogError
from unstable_stream.events import EVENT_TYPES
from unstable_stream.log.topics import TOPICS_DIR

ENVIRONMENT_PREFIX: Final = "UNSTABLE_STREAM_REGISTRY_"
_TIMEOUT_S: Final = 30.0
_MEDIA_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_NOT_THERE: Final = (40401, 40403)
"""No such subject; the subject has no such schema."""
_INCOMPATIBLE: Final = 409


@dataclass(frozen=True)
class RegisteredSchema:
    """The schema of an event at a registry."""

    subject: str
    version: int | None
    """Counted by the registry from 1 for each subject; ``None``: not registered."""
    id: int | None
    """The registry's number of the schema; ``None``: not registered."""
    state: str
    """``registered`` now, ``was there``, or ``missing``."""


def event_schemas() -> Iterator[tuple[str, str]]:
    """Yield subject and schema of each event."""
    for name, event in EVENT_TYPES.items():
        file = TOPICS_DIR / "schemas" / f"{name}.v{event.SCHEMA_VERSION}.json"
        yield f"unstable_stream.{name}", file.read_text(encoding="utf-8")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Another host must not get the password; a redirect is an error."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class SchemaRegistry:
    """A registry, by its address; the login is only in the environment."""

    url: str
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def __post_init__(self) -> None:
        """Check the address.

        Raises:
            ConfigError: it is none, or has a password in it.
        """
        shown = without_logins(self.url)
        try:
            parts = urllib.parse.urlsplit(self.url)
        except ValueError as error:
            raise ConfigError(f"registry {shown!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or not self.url.isascii():
            raise ConfigError(f"registry {shown!r}: expected http://HOST:PORT or https://HOST:PORT")
        if parts.username is not None:
            raise ConfigError(
                f"registry {parts.scheme}://…@{parts.hostname}: put the login into the environment: "
                f"{ENVIRONMENT_PREFIX}USERNAME and {ENVIRONMENT_PREFIX}PASSWORD"
            )

    def find(self, subject: str, schema: str) -> RegisteredSchema:
        """Return where a schema is registered."""
        found = self._ask("POST", f"/subjects/{subject}", _body(schema))
        if found is None:
            return RegisteredSchema(subject, None, None, "missing")
        if not {"version", "id"} <= found.keys():
            raise EventLogError(f"no schema registry answers at {self.url}: give its address up to /subjects")
        return RegisteredSchema(subject, found["version"], found["id"], "was there")

    def register(self, subject: str, schema: str, compatibility: str | None = None) -> RegisteredSchema:
        """Register a schema, unless it is there.

        Args:
            subject: the name under which its versions are counted.
            schema: as JSON.
            compatibility: what the subject's versions have to be, e.g. ``FULL``; ``None``: as it is set.

        Raises:
            EventLogError: the registry is not reached, or refuses.
        """
        found = self.find(subject, schema)
        if found.id is not None:
            return found
        if compatibility is not None:
            self._ask("PUT", f"/config/{subject}", {"compatibility": compatibility})
        self._ask("POST", f"/subjects/{subject}/versions", _body(schema))
        found = self.find(subject, schema)
        return RegisteredSchema(subject, found.version, found.id, "registered")

    # ``Any``: JSON.
    def _ask(self, method: str, path: str, body: Mapping[str, str]) -> dict[str, Any] | None:
        request = urllib.request.Request(
            self.url.rstrip("/") + path,
            json.dumps(body).encode(),
            {"Content-Type": _MEDIA_TYPE, "Accept": f"{_MEDIA_TYPE}, application/json"} | self._login(),
            method=method,
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                told = _json_object(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                said = _json_object(error.read())
            if said.get("error_code") in _NOT_THERE:
                return None
            raise self._refused(path, error.code, said.get("message", "without a reason")) from error
        except (OSError, http.client.HTTPException) as error:  # also what urllib raises of its own
            reason = getattr(error, "reason", error)
            raise EventLogError(f"the schema registry {self.url} cannot be reached: {reason}") from error
        return told

    def _login(self) -> dict[str, str]:
        name, password = (
            self.environment.get(f"{ENVIRONMENT_PREFIX}{part}") for part in ("USERNAME", "PASSWORD")
        )
        if name is None:
            return {}
        login = base64.b64encode(f"{name}:{password or ''}".encode()).decode()
        return {"Authorization": f"Basic {login}"}

    @functools.cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        trusted = ssl.create_default_context(cafile=self.environment.get(f"{ENVIRONMENT_PREFIX}SSL_CAFILE"))
        return urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=trusted))

    def _refused(self, path: str, status: int, reason: object) -> EventLogError:
        said = f"{self.url}{path}: {reason} (status {status})"
        if status in (401, 403):
            login = f"{ENVIRONMENT_PREFIX}USERNAME and {ENVIRONMENT_PREFIX}PASSWORD"
            return EventLogError(f"the schema registry does not let us in: {said}. Set {login}")
        if status == _INCOMPATIBLE:
            return EventLogError(
                f"to the schema registry this version is incompatible with earlier ones: {said}. Many refuse "
                "a further optional field, which readers of JSON pass over: --compatibility NONE registers it"
            )
        return EventLogError(f"the schema registry refused: {said}. Give its address up to /subjects")


def _body(schema: str) -> dict[str, str]:
    return {"schemaType": "JSON", "schema": schema}


# ``Any``: JSON.
def _json_object(text: bytes) -> dict[str, Any]:
    """Return the object in an answer; an empty one if it is something else, e.g. a page of a proxy."""
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
