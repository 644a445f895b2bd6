"""Schemas at a registry: a server of the published API, or a running one named by the environment."""

import base64
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.command_line import run_command
from unstable_stream.errors import ConfigError, EventLogError
from unstable_stream.events import EVENT_TYPES
from unstable_stream.log.schema_registry import ENVIRONMENT_PREFIX, SchemaRegistry, event_schemas
from unstable_stream.log.topics import TOPICS_DIR

EXISTING_REGISTRY = "UNSTABLE_STREAM_TEST_REGISTRY"
"""Environment variable: address of an empty registry to use, e.g. Apicurio's with ``/apis/ccompat/v7``."""

_LOGIN = base64.b64encode(b"me:pass:word").decode()


class Registry(BaseHTTPRequestHandler):
    """What Confluent publishes of its API: ids by content, versions by subject. ``FULL``: no field may go.

    https://docs.confluent.io/platform/current/schema-registry/develop/api.html
    """

    server: "RegistryServer"

    def do_PUT(self) -> None:
        subject = self.path.removeprefix("/config/")
        self.server.levels[subject] = self._body()["compatibility"]
        self._answer(200, compatibility=self.server.levels[subject])

    def do_POST(self) -> None:
        if self.server.needs_login and self.headers.get("Authorization") != f"Basic {_LOGIN}":
            return self._answer(401, error_code=401, message="Unauthorized")
        found = re.fullmatch(r"/subjects/([^/]+)(/versions)?", self.path)
        if self.path.startswith("/moved"):
            return self._answer(302, Location=f"{self.server.url}{self.path.removeprefix('/moved')}")
        if found is None:
            return self._answer(404, error_code=404, message="HTTP 404 Not Found")
        subject, body = found[1], self._body()
        versions = self.server.subjects.get(subject)
        if body["schemaType"] != "JSON" or _fields(body["schema"]) is None:
            return self._answer(422, error_code=42201, message="Invalid schema")
        if found[2]:
            return self._register(subject, body["schema"])
        if versions is None:
            return self._answer(404, error_code=40401, message=f"Subject '{subject}' not found.")
        if body["schema"] not in versions:
            return self._answer(404, error_code=40403, message="Schema not found")
        version, schema_id = versions.index(body["schema"]) + 1, self.server.ids[body["schema"]]
        return self._answer(200, subject=subject, version=version, id=schema_id, schema=body["schema"])

    def _register(self, subject: str, schema: str) -> None:
        versions = self.server.subjects.setdefault(subject, [])
        kept = self.server.levels.get(subject) != "FULL" or not versions
        if not kept and not (_fields(versions[-1]) or set()) <= (_fields(schema) or set()):
            return self._answer(409, error_code=409, message="Schema being registered is incompatible")
        if schema not in versions:
            versions.append(schema)
        self.server.ids.setdefault(schema, len(self.server.ids) + 1)
        return self._answer(200, id=self.server.ids[schema])

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, **body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Location", str(body.get("Location", "")))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _fields(schema: str) -> set[str] | None:
    try:
        return {
            field for struct in json.loads(schema)["$defs"].values() for field in struct.get("properties", ())
        }
    except ValueError:
        return None


class RegistryServer(ThreadingHTTPServer):
    """What a registry has."""

    def __init__(self, *, needs_login: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Registry)
        self.needs_login = needs_login
        self.subjects: dict[str, list[str]] = {}
        self.levels: dict[str, str] = {}
        self.ids: dict[str, int] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(**how: Any) -> Iterator[RegistryServer]:
    with RegistryServer(**how) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    existing = os.environ.get(EXISTING_REGISTRY)
    if existing:
        yield existing
        return
    with serving() as server:
        yield server.url


def rows(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def test_all_events_are_registered_once(url: str, tmp_path: Path) -> None:
    command = ("topics", "register", "--registry", url, "--json")
    looked = run_command(*command, "--dry-run", cwd=tmp_path)
    assert {row["state"] for row in rows(looked.stdout)} == {"missing"}
    first = run_command(*command, cwd=tmp_path)
    assert first.stderr == f"{len(EVENT_TYPES)} registered, 0 were there\n"
    again = run_command(*command, cwd=tmp_path)
    assert again.stderr == f"0 registered, {len(EVENT_TYPES)} were there\n"
    registered = rows(first.stdout)
    assert {row["subject"] for row in registered} == {f"unstable_stream.{name}" for name in EVENT_TYPES}
    assert {row["version"] for row in registered} == {1}
    assert len({row["id"] for row in registered}) == len(EVENT_TYPES)
    assert rows(again.stdout) == [row | {"state": "was there"} for row in registered]


def test_what_is_registered_takes_recorded_events() -> None:
    for subject, schema in event_schemas():
        name = f"{subject.removeprefix('unstable_stream.')}.v1"
        validator = jsonschema.Draft202012Validator(json.loads(schema))
        validator.validate(json.loads((TOPICS_DIR / "golden" / f"{name}.json").read_bytes()))
        assert json.loads(schema)["$id"].endswith(f":{name}")


def test_another_version_is_the_next_one_and_an_incompatible_one_refused() -> None:
    subject, schema = next(event_schemas())
    with serving() as server:
        registry = SchemaRegistry(server.url, {})
        assert registry.register(subject, schema, "FULL").version == 1
        with_more = schema.replace('"run_id": {', '"added": {"type": "string"}, "run_id": {', 1)
        assert registry.register(subject, with_more).version == 2
        assert registry.find(subject, schema).version == 1
        with pytest.raises(EventLogError, match=r"incompatible with earlier ones.*409.*--compatibility NONE"):
            registry.register(subject, schema.replace('"run_id"', '"runs_id"'))
        with pytest.raises(EventLogError, match=r"Invalid schema \(status 422\)"):
            registry.register(subject, "{")


def test_the_login_is_in_the_environment_and_in_no_message(tmp_path: Path) -> None:
    with serving(needs_login=True) as server:
        command = ("topics", "register", "--registry", server.url)
        right = {f"{ENVIRONMENT_PREFIX}USERNAME": "me", f"{ENVIRONMENT_PREFIX}PASSWORD": "pass:word"}
        assert run_command(*command, cwd=tmp_path, **right).returncode == 0
        refused = run_command(
            *command, cwd=tmp_path, **right | {f"{ENVIRONMENT_PREFIX}PASSWORD": "hush-hush"}
        )
        assert refused.returncode == 1
        assert f"Unauthorized (status 401). Set {ENVIRONMENT_PREFIX}USERNAME" in refused.stderr
        assert "hush" not in refused.stderr + repr(SchemaRegistry(server.url, right))
    with pytest.raises(ConfigError, match=r"put the login into the environment") as told:
        SchemaRegistry("https://me:hush-hush@registry.example", {})
    assert "hush" not in str(told.value)


def test_what_is_no_registry_is_named() -> None:
    subject, schema = next(event_schemas())
    with serving() as server:
        with pytest.raises(EventLogError, match=r"status 404.*Give its address up to /subjects"):
            SchemaRegistry(f"{server.url}/elsewhere", {}).find(subject, schema)
        with pytest.raises(EventLogError, match="status 302"):  # it would take the login along
            SchemaRegistry(f"{server.url}/moved", {}).find(subject, schema)
        url = server.url
    with pytest.raises(EventLogError, match=f"{url} cannot be reached"):
        SchemaRegistry(url, {}).find(subject, schema)
    with pytest.raises(ConfigError, match="expected http"):
        SchemaRegistry("registry:8081", {})


@pytest.mark.parametrize("address", ["me:hush-hush@host:8081", "http://[host", "http://host/ä"])
def test_what_is_no_address_is_one_line_without_a_password(address: str) -> None:
    with pytest.raises(ConfigError, match="registry '") as caught:
        SchemaRegistry(address, {})
    assert "hush-hush" not in str(caught.value)
