"""Reserving GPUs of a Ray cluster; Ray only counts them, so that none need be there."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.processes import completed, python, send
from tests.services.launch.conftest import Clusters
from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import LearnerUpdate, RunFinished, RunStarted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_BEGIN = """
import json, os, sys
import ray
from unstable_stream.errors import UnstableStreamError
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.placement import Machine, Placement, Share, place
from unstable_stream.services.launch.ray.cluster import (
    actor_options, beside, cluster_machines, connect, planned, reserve
)
from unstable_stream.services.launch.ray.nodes import check_nodes

connect()

def placed(engines):
    env = {"env_id": "TicTacToe-v0-train"}
    given = {"model": "tiny-player", "train_envs": [env], "collector": {"num_actors": engines}}
    return (config := parse_config(given)), place(config, cluster_machines(30))
"""
_SERVICE = """
engines = [Share(f"engine {number}", float(gpus)) for number, gpus in enumerate(sys.argv[1:])]
try:
    os.environ.update(reserve(Placement(Share("learner", 0.5), tuple(engines), (Machine(),)), deadline_s=5.0))
    plan = planned()
    devices = ray.remote(lambda: os.environ.get("CUDA_VISIBLE_DEVICES"))
    seen = [ray.get(devices.options(**actor_options(plan, share)).remote()) for share in plan.shares]
    print(json.dumps({"gpus": [m.gpus for m in cluster_machines(30)], "devices": seen}))
except UnstableStreamError as error:
    print(json.dumps({"error": str(error)}))
"""


@pytest.fixture(scope="module")
def one_gpu() -> Iterator[str]:
    """The address of a cluster of one machine that counts one GPU."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("UNSTABLE_STREAM_PRETEND_GPUS", "1")  # which its workers inherit
        cluster = Cluster(initialize_head=True, head_node_args={"num_gpus": 1, "num_cpus": 2})
        yield cluster.address
        cluster.shutdown()


def answer(address: str, *engines: float, script: str = _SERVICE) -> Any:
    done = python(_BEGIN + script, *engines, RAY_ADDRESS=address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_learner_and_engines_compute_on_one_gpu(one_gpu: str) -> None:
    found = answer(one_gpu, 0.25, 0.25, 0.0)
    assert found["gpus"] == [1]
    assert found["devices"][:3] == ["0", "0", "0"], "one reservation, one GPU"


def test_a_plan_is_made_for_the_cluster_without_starting_anything(one_gpu: str) -> None:
    command = Path(sys.executable).with_name("unstable-stream")
    environment = {**os.environ, "RAY_ADDRESS": one_gpu}
    plan = completed(command, "plan", "examples/connectfour.toml", env=environment)
    assert plan.returncode == 0, plan.stderr
    places = {line.split()[0]: line for line in plan.stdout.splitlines()}
    assert "on GPU 0" in places["learner"]


def test_gpus_that_are_taken_are_waited_for_with_a_deadline_and_a_reason(one_gpu: str) -> None:
    error = answer(one_gpu, 1.0)["error"]
    assert "no GPU for the run within 5 s: it wants 0.5, 1" in str(error)
    assert "1 GPUs" in str(error)
    assert "engine.num_gpus" in str(error)


_TWO_MACHINES = """
config, plan = placed(5)
try:
    check_nodes(config, "/not/there", plan.machines)
    error = None
except UnstableStreamError as found:
    error = str(found)
class Where:
    def node(self):
        return ray.get_runtime_context().get_node_id()
def where(options):
    actor = ray.remote(Where).options(**options).remote()
    return [machine.node for machine in plan.machines].index(ray.get(actor.node.remote()))
print(json.dumps({
    "parts": [where(actor_options(plan, share)) for share in plan.shares],
    "workers": [where(beside(plan, share)) for share in plan.engines],
    "head": [machine.node for machine in plan.machines].index(ray.get_runtime_context().get_node_id()),
    "error": error,
}))
"""


@pytest.mark.long
def test_parts_spread_over_the_machines_of_a_cluster_and_each_is_asked_what_it_has(
    ray_cluster: Clusters,
) -> None:
    found = answer(ray_cluster({"num_cpus": 2}, {"num_cpus": 2}).address, script=_TWO_MACHINES)
    assert found["parts"] == [0, 1, 0, 1, 0, 1], "learner, then engines"
    assert found["workers"] == [1, 0, 1, 0, 1], "each beside its engine"
    assert found["head"] == 1, "it is the last to be given work"
    error = str(found["error"])
    assert error.count("no model at /not/there") == 2, error


_TWO_MACHINES_WITH_GPUS = """
_, plan = placed(3)
os.environ.update(reserve(plan))
node = ray.remote(lambda: ray.get_runtime_context().get_node_id())
print(json.dumps([ray.get(node.options(**actor_options(plan, share)).remote()) for share in plan.engines]))
"""


@pytest.mark.long
def test_engines_with_gpus_spread_over_the_machines(ray_cluster: Clusters) -> None:
    machine = {"num_cpus": 2, "num_gpus": 4}
    found = answer(ray_cluster(machine, machine).address, script=_TWO_MACHINES_WITH_GPUS)
    assert len(set(found)) == 2, "one machine could hold all engines and the learner"


async def test_a_run_is_refused_before_it_is_recorded_where_a_machine_lacks_something(
    ray_cluster: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNSTABLE_STREAM_PRETEND_GPUS", raising=False)
    ray_cluster({"num_gpus": 1, "num_cpus": 2})
    async with LaunchedRun.train(tmp_path, "learner.iterations=1") as run:
        assert await run.end() == 1, run.told()
        assert run.history.of(RunStarted) == []
        told = run.stderr.read_text()
    assert "machines of the Ray cluster lack what the run needs" in told
    assert "Ray counts 1 GPUs, and PyTorch can use 0" in told
    assert "resume" not in told, "there is nothing to resume"


@pytest.mark.long
async def test_a_run_begins_on_one_gpu_and_where_its_ray_head_dies_says_how_it_is_resumed(
    ray_cluster: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSTABLE_STREAM_PRETEND_GPUS", "1")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
    cluster = ray_cluster({"num_gpus": 1, "num_cpus": 2})
    settings = ("learner.iterations=1000", "evaluation.opponents=[]")
    async with LaunchedRun.train(tmp_path, *settings) as run:
        await run.until("an update", lambda seen: bool(seen.of(LearnerUpdate)))
        assert "learner: on GPU 0, 45% of its memory, shared with engine 0" in run.stderr.read_text()
        for name in ("gcs_server", "raylet"):
            for started in cluster.head_node.all_processes[name]:
                send(started.process.pid)  # the one may end with the other
        assert await run.end() == 1, run.told()
        said = run.stderr.read_text()
        assert "Ray cluster" in said, said
        assert re.search(r"resume it with: unstable-stream train --resume \S+ --data ", said), said
        assert run.history.of(RunFinished)[-1].outcome == "failed"
