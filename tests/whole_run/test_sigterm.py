"""SIGTERM to ``train``, as by an operator or Kubernetes: services end in order, and the run can go on."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.conftest import free_port_pair
from tests.tiers import chosen
from tests.whole_run import noting_engines
from tests.whole_run.processes import DEADLINE_S, History, LaunchedRun, environment
from unstable_stream.events import GameOutcome, LearnerUpdate, Metrics, RunFinished, RunStarted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


def served(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text: str = response.read().decode()
    return text


@chosen("number", [signal.SIGHUP], [signal.SIGTERM])
async def test_a_signal_to_the_whole_group_while_ray_starts_ends_the_run_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    """As ``timeout`` sends SIGTERM, and a closed terminal SIGHUP."""
    async with LaunchedRun.train(tmp_path, "learner.iterations=50") as run:
        await run.find("launch.ray.keeper")
        os.killpg(run.popen.pid, number)
        assert await run.end() == 130, run.told()
        assert run.left_behind() == []
        (began,) = run.history.of(RunStarted)
        (end,) = run.history.of(RunFinished)
        assert (end.outcome, end.reason, end.updates) == ("stopped", number.name, 0)
        said = run.stderr.read_text()
        assert f"{number.name}: stopping run {began.run_id}; waiting for " in said
        assert "Traceback" not in said


_SCRIPT = """
import sys
from pathlib import Path
import unstable_stream as us
from tests.whole_run.test_backends import config

run = us.build(config=config(learner={"iterations": 1000}), data=Path(sys.argv[1]), backend="inline")
run.start(block=False, live=False)
print(run.id, flush=True)
sys.stdin.readline()
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, None])
async def test_a_script_that_does_not_wait_ends_its_run_in_order(
    tmp_path: Path, number: signal.Signals | None
) -> None:
    history = History(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment("local"),
        cwd=Path(__file__).resolve().parents[2],
    ) as script:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not history.of(GameOutcome):
                    assert script.poll() is None
                    if (tmp_path / "log.sqlite").exists():
                        await history.read(timeout_s=0.2)
                    await asyncio.sleep(0.05)
                if number is not None:
                    script.send_signal(number)
                _, said = await asyncio.to_thread(script.communicate)
        finally:
            script.kill()
    await history.read_all()
    (end,) = history.of(RunFinished)
    await history.close()
    assert script.returncode == (-number if number else 0), said
    assert (end.outcome, end.reason) == ("stopped", number.name if number else "its program ended")
    assert f"stopping run {end.run_id}" in said
    assert "Traceback" not in said


@pytest.mark.long
async def test_train_stops_in_order_and_says_how_to_go_on(tmp_path: Path) -> None:
    port = free_port_pair()
    data, notes = tmp_path / "data", tmp_path / "notes.txt"
    engine = f"engine={{type='{noting_engines.__file__}:Noting', notes='{notes}'}}"
    async with LaunchedRun.train(data, "learner.iterations=50", f"metrics_port={port}", engine) as run:
        await run.until("the first update", lambda seen: bool(seen.of(LearnerUpdate)))
        run_id = run.history.of(LearnerUpdate)[0].run_id
        wanted = (
            f'unstable_stream_service_up{{run="{run_id}",service="learner"}} 1.0',
            f'unstable_stream_service_up{{run="{run_id}",service="monitor"}} 1.0',
            f'unstable_stream_run_active{{run="{run_id}"}} 1.0',
            f'unstable_stream_learner_update{{run="{run_id}"}} ',
        )
        await run.until("all metrics", lambda _: all(line in served(port) for line in wanted))
        run.popen.send_signal(signal.SIGTERM)
        assert await run.end() == 130, run.told()
        assert run.left_behind() == []
        (end,) = run.history.of(RunFinished)
        assert (end.outcome, end.reason) == ("stopped", "SIGTERM")
        assert end.updates == len(run.history.of(LearnerUpdate))
        told = run.stderr.read_text()
        assert f"go on with: unstable-stream train --resume {run_id} --data {data}\n" in told
        assert "Traceback" not in told + "".join(path.read_text() for path in data.glob("logs/*/*.log"))
        assert notes.read_text().splitlines() == ["started", "closed"], "its engine is closed, not only ended"
        (collector,) = data.glob("logs/*/collector.log")
        assert "not closed in order" not in collector.read_text()
        last = [event.values for event in run.history.of(Metrics) if event.source == "launcher"][-1]
        assert (last["services/learner/up"], last["services/collector/up"]) == (0.0, 0.0)
        await run.prove(run_id)
