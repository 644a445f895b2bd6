"""A directory is uploaded by huggingface_hub itself, to a Hub on this machine that speaks its protocol."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from unstable_stream.api.hub import upload
from unstable_stream.errors import RunError

TOKEN = "hf_of_this_test"
REPOSITORY = "me/player"


class Hub:
    """One model repository: what the client asks for when it makes, looks at and fills it."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {".gitattributes": b""}
        self.private: bool | None = None
        """``None``: the repository does not exist."""
        self.message = ""
        self.refuses: str | None = None

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        if self.refuses is not None:
            return 403, {"error": self.refuses}
        if path == "/api/repos/create":
            url = {"url": f"https://huggingface.co/{REPOSITORY}"}
            if self.private is not None:
                return 409, {"error": "You already created this model repo", **url}
            wanted = json.loads(body)
            # Versions 1 of the client say "private", later ones "visibility".
            self.private = wanted.get("private", wanted.get("visibility") == "private")
            return 200, url
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        of_repository = path.removeprefix(f"/api/models/{REPOSITORY}")
        if of_repository in ("", "/revision/main"):
            siblings = [{"rfilename": name} for name in self.files]
            return 200, {"id": REPOSITORY, "private": self.private, "siblings": siblings}
        if of_repository == "/tree/main":
            return 200, [
                {"type": "file", "path": name, "size": len(content), "oid": "0"}
                for name, content in self.files.items()
            ]
        if of_repository == "/preupload/main":
            paths = [file["path"] for file in json.loads(body)["files"]]
            return 200, {
                "files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            }
        if of_repository == "/commit/main":
            for line in map(json.loads, body.decode().splitlines()):
                self.change(line["key"], line["value"])
            return 200, {"commitUrl": f"https://huggingface.co/{REPOSITORY}/commit/1", "commitOid": "1"}
        return 404, {"error": f"nothing at {path}"}

    def change(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "header":
            self.message = value["summary"]
        elif kind == "file":
            self.files[value["path"]] = base64.b64decode(value["content"])
        elif kind == "deletedFile":
            del self.files[value["path"]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, str]]:
    """A Hub and its address."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    made = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.partition("?")[0]
            known = self.headers.get("authorization") == f"Bearer {TOKEN}"
            status, answer = made.answer(path, body) if known else (401, {"error": "who are you?"})
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST  # noqa: N815

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n# player\n")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    return tmp_path


def push(directory: Path, address: str, *, public: bool = False, replace: bool = False) -> str:
    return upload(
        directory,
        REPOSITORY,
        public=public,
        replace=replace,
        message="run@2 of unstable_stream",
        endpoint=address,
    )


def test_the_repository_is_private_and_has_the_files(hub: tuple[Hub, str], directory: Path) -> None:
    made, address = hub
    assert push(directory, address) == f"{address}/{REPOSITORY}"
    assert made.private is True
    assert made.message == "run@2 of unstable_stream"
    assert made.files.keys() == {".gitattributes", "README.md", "adapter_model.safetensors"}
    assert made.files["adapter_model.safetensors"] == b"weights"


def test_a_repository_is_made_public_if_that_is_said(hub: tuple[Hub, str], directory: Path) -> None:
    made, address = hub
    push(directory, address, public=True)
    assert made.private is False


def test_files_on_the_hub_are_replaced_only_if_that_is_said(hub: tuple[Hub, str], directory: Path) -> None:
    made, address = hub
    made.private = True
    made.files["model.safetensors"] = b"old"
    before = dict(made.files)
    with pytest.raises(RunError, match=r"^hf://me/player has files: add --replace"):
        push(directory, address)
    assert made.files == before
    push(directory, address, replace=True)
    assert made.files.keys() == {".gitattributes", "README.md", "adapter_model.safetensors"}


def test_nothing_becomes_public_unless_that_is_said(hub: tuple[Hub, str], directory: Path) -> None:
    made, address = hub
    made.private = False
    with pytest.raises(RunError, match=r"is public: add --public"):
        push(directory, address)
    assert made.files.keys() == {".gitattributes"}
    push(directory, address, public=True)
    assert "README.md" in made.files


def test_what_the_hub_says_no_to_is_one_line(
    hub: tuple[Hub, str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, address = hub
    made.refuses = "you have no right to create a model here"
    with pytest.raises(
        RunError, match=r"^could not upload to hf://me/player: .*no right to create"
    ) as caught:
        push(directory, address)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    with pytest.raises(RunError, match="who are you"):
        push(directory, address)
    with pytest.raises(RunError, match=r"^could not upload to hf://me/player: ") as caught:
        push(directory, "http://127.0.0.1:9")  # where nobody listens
    assert "\n" not in str(caught.value)
