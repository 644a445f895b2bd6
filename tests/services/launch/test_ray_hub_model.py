"""Machines that share no disk, and a model of Hugging Face's: each fetches it for itself."""

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.processes import python
from tests.services.launch.conftest import Clusters
from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import LearnerUpdate, RunStarted
from unstable_stream.inference.base_model import resolve_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_MODEL = "someone/player"
_COMMIT = "5ca1ab1e" * 5
_LATER = "0ddba115" * 5


class Hub(BaseHTTPRequestHandler):
    """The part of Hugging Face's protocol by which a whole model is fetched."""

    files: Path
    newest = _COMMIT

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        names = sorted(file.name for file in self.files.iterdir())
        commit = next((each for each in (_COMMIT, _LATER) if each in path), self.newest)
        if path in {f"/api/models/{_MODEL}/revision/{revision}" for revision in ("main", commit)}:
            siblings = [{"rfilename": name} for name in names]
            body = json.dumps({"id": _MODEL, "sha": commit, "siblings": siblings}).encode()
        elif path == f"/api/models/{_MODEL}/tree/{commit}":
            sizes = {name: (self.files / name).stat().st_size for name in names}
            tree = [{"type": "file", "oid": n, "size": size, "path": n} for n, size in sizes.items()]
            body = json.dumps(tree).encode()
        elif path.startswith(f"/{_MODEL}/resolve/{commit}/") and path.rpartition("/")[2] in names:
            body = (self.files / path.rpartition("/")[2]).read_bytes()
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{path.rpartition("/")[2]}"')
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hugging Face, for this process and those that it starts."""
    Hub.files = Path(resolve_model("tiny-player"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(Hub, "newest", _COMMIT)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # vLLM engines of earlier tests set it
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    yield
    server.shutdown()
    thread.join()
    server.server_close()


_ASK = """
import sys
from pathlib import Path
from unstable_stream.errors import ConfigError
from unstable_stream.services.launch.ray import nodes
from unstable_stream.services.launch.ray.cluster import connect
from unstable_stream.services.launch.ray.cluster import cluster_machines
from unstable_stream.runs.config import parse_config

connect()
model, path, silent = sys.argv[1:]
config = parse_config({"model": model, "train_envs": [{"env_id": "TicTacToe-v0-train"}]})
machines = cluster_machines(30)
nodes.check_nodes(config, path, [each for each in machines if each.node != silent])
print("all have fetched it", flush=True)
nodes._TELL_S, nodes._FETCH_S = 2.0, 12.0
try:
    nodes.check_nodes(config, path, machines, print)
except ConfigError as error:
    print(error)
"""


@pytest.mark.long
def test_each_machine_fetches_the_model_for_itself_and_one_that_does_not_answer_is_named(
    hub: None, ray_cluster: Clusters, tmp_path: Path
) -> None:
    """The launcher's directory is nowhere, as it is for other machines, since all are one machine here."""
    homes = {name: tmp_path / name for name in ("launcher", "head", "worker")}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        deaf = {
            "HF_HOME": str(tmp_path / "silent"),
            "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "HF_HUB_ETAG_TIMEOUT": "600",
        }
        cluster = ray_cluster(
            {"num_cpus": 1, "env_vars": {"HF_HOME": str(homes["head"])}},
            {"num_cpus": 1, "env_vars": {"HF_HOME": str(homes["worker"])}},
        )
        node = cluster.add_node(num_cpus=1, env_vars=deaf)
        path = tmp_path / "nowhere" / "snapshots" / _COMMIT
        asked = python(_ASK, _MODEL, path, node.node_id, HF_HOME=str(homes["launcher"]))
        cluster.shutdown()  # while there is somebody who does not answer
    assert asked.returncode == 0, asked.stderr
    for home in homes.values():
        assert list(home.glob(f"hub/models--someone--player/snapshots/{_COMMIT}/*.safetensors")), home
    fetched, *said = asked.stdout.splitlines()
    host = socket.gethostname()
    assert fetched == "all have fetched it"
    assert f"fetching the model {_MODEL}: after 2 s no answer from " in said[0], asked.stdout + asked.stderr
    assert said[-1].startswith(f"no answer within 12 s from {host}, which should fetch the model {_MODEL}: ")


@pytest.mark.long
async def test_a_run_keeps_the_version_of_its_models_while_the_hub_gets_newer_ones(
    hub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    opponent = f"{{name='other',kind='model',path='{_MODEL}',template='simpletak-board'}}"
    settings = (f"model={_MODEL}", "learner.iterations=1000", f"evaluation.opponents=[{opponent}]")
    async with LaunchedRun.train(tmp_path / "data", *settings, "backend=inline") as run:
        await run.until("an update", lambda seen: bool(seen.of(LearnerUpdate)))
        (started,) = run.history.of(RunStarted)
        assert started.config["model_revisions"] == {_MODEL: _COMMIT}
        monkeypatch.setattr(Hub, "newest", _LATER)
        run.popen.kill()
        await run.end()
        updates = len(run.history.of(LearnerUpdate))
        async with LaunchedRun.resume(run, started.run_id) as resumed:
            await resumed.until("another update", lambda seen: len(seen.of(LearnerUpdate)) > updates)
    (fetched,) = (tmp_path / "home").glob("hub/models--someone--player/snapshots/*")
    assert fetched.name == _COMMIT
