"""Ray ends who is connected to a cluster whose head is lost; the launcher must live to tell what to do."""

import re
from pathlib import Path

import pytest

from tests.processes import send
from tests.services.launch.conftest import Clusters
from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import LearnerUpdate, RunFinished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


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
