"""SIGTERM to ``train``, as by an operator or Kubernetes: services end in order, and the run can go on."""

import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.kafka.brokers import KafkaCluster
from tests.conftest import free_port_pair, skip_without_kafka
from tests.whole_run.processes import DEADLINE_S, LaunchedRun
from unstable_stream.events import LearnerUpdate, Metrics, RunFinished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(params=["local", "kafka"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A log that holds this test's run and nothing else."""
    if request.param == "local":
        yield "local"
        return
    skip_without_kafka()
    with KafkaCluster(tmp_path / "kafka", port=free_port_pair()) as cluster:
        yield f"kafka://{cluster.bootstrap}"


def served(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text: str = response.read().decode()
    return text


async def test_train_stops_in_order_and_says_how_to_go_on(location: str, tmp_path: Path) -> None:
    port = free_port_pair()
    data = tmp_path / "data"
    async with LaunchedRun.train(data, "learner.iterations=50", f"metrics_port={port}", log=location) as run:
        await run.until("the first update", lambda seen: bool(seen.of(LearnerUpdate)))
        run_id = run.history.of(LearnerUpdate)[0].run_id
        wanted = (
            f'unstable_stream_service_up{{run="{run_id}",service="learner"}} 1.0',
            f'unstable_stream_service_up{{run="{run_id}",service="monitor"}} 1.0',
            f'unstable_stream_run_active{{run="{run_id}"}} 1.0',
            f'unstable_stream_learner_update{{run="{run_id}"}} ',
        )
        deadline = time.monotonic() + DEADLINE_S
        while not all(line in (text := served(port)) for line in wanted):
            assert time.monotonic() < deadline, text
            await run.history.read(timeout_s=0.5)
        run.popen.send_signal(signal.SIGTERM)
        assert await run.end() == 130, run.told()
        assert run.left_behind() == []
        (end,) = run.history.of(RunFinished)
        assert (end.outcome, end.updates) == ("stopped", len(run.history.of(LearnerUpdate)))
        told = run.stderr.read_text()
        log_option = "" if location == "local" else f" --log {location}"
        assert f"go on with: unstable-stream train --resume {run_id} --data {data}{log_option}\n" in told
        assert "Traceback" not in told + "".join(path.read_text() for path in data.glob("logs/*/*.log"))
        last = [event.values for event in run.history.of(Metrics) if event.source == "launcher"][-1]
        assert (last["services/learner/up"], last["services/collector/up"]) == (0.0, 0.0)
        verified = await run.command("verify", run_id)
        assert verified.returncode == 0, verified.stdout
        report = await run.command("audit", run_id)
        assert (report.returncode, report.stderr) == (0, ""), report.stdout
