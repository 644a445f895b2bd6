"""Engines come and go while a run trains: with a machine, by a person's word, and when they are killed."""

import asyncio
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from ray.cluster_utils import Cluster
from typer.testing import CliRunner

from tests.processes import send
from tests.services.launch.conftest import Clusters, patiently
from tests.whole_run.processes import CONFIG, History, LaunchedRun, run_command
from unstable_stream.events import (
    EnginesChanged,
    LearnerUpdate,
    PartChanged,
    RunFinished,
    RunResumed,
    RunStarted,
)
from unstable_stream.ui.cli import app

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_ENGINE = Path(__file__).resolve().parents[3] / "examples" / "extensions" / "engine.py"


def changes(seen: History) -> list[tuple[str, str]]:
    return [(change.engine, change.change) for change in seen.of(EnginesChanged)]


def parts(seen: History, part: str) -> list[str]:
    return [change.change for change in seen.of(PartChanged) if change.part == part]


def run_id(run: LaunchedRun) -> str:
    return run.history.of(RunStarted)[0].run_id


def pids_that_write(part: str, data: Path) -> list[int]:
    """The actors that write the log of a part."""
    (log,) = data.glob(f"logs/*/{part}.log")
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if Path(f"/proc/{process.pid}/fd/1").resolve() == log.resolve() and "ray::" in process.name():
                found.append(process.pid)
    return found


async def scale(run: LaunchedRun, data: Path, *arguments: str) -> None:
    told = await asyncio.to_thread(run_command, data, "scale", run_id(run), *arguments)
    assert told.returncode == 0, told.stderr


def drain(cluster: Cluster, node_id: str) -> None:
    """Announce that a machine will be taken away in ten minutes, as a cloud does."""
    command = [str(Path(sys.executable).with_name("ray")), "drain-node", f"--address={cluster.address}"]
    command += [f"--node-id={node_id}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=a test"]
    subprocess.run([*command, "--deadline-remaining-seconds=600"], check=True, timeout=120)


@pytest.mark.long
async def test_engines_follow_the_cluster_a_person_and_losses(ray_cluster: Clusters, tmp_path: Path) -> None:
    cluster = ray_cluster({"num_cpus": 1})
    settings = (
        "learner.iterations=1000",
        "evaluation.opponents=[]",
        "collector.num_actors={min=1, max=2}",
        f"engine={{type='{_ENGINE}:Constant', token=24}}",  # the tiny player's [0]
    )
    run = LaunchedRun.train(tmp_path, *settings)
    run.deadline_s = 600
    async with run:
        await run.until("the first engine", lambda seen: changes(seen) == [("engine-0", "added")])
        await run.until("an update", lambda seen: bool(seen.of(LearnerUpdate)))

        patiently(lambda: cluster.add_node(num_cpus=1))
        await run.until("an engine on the new machine", lambda seen: ("engine-1", "added") in changes(seen))
        (added,) = [change for change in run.history.of(EnginesChanged) if change.engine == "engine-1"]
        assert (added.serving, added.reason) == (2, "the cluster has room, up to 2")

        await scale(run, tmp_path, "--engines", "3")
        await run.until("a third engine", lambda seen: ("engine-2", "added") in changes(seen))
        assert run.history.of(EnginesChanged)[-1].reason == "a person wants 3"

        (pid,) = pids_that_write("engine-2", tmp_path)
        assert send(pid)
        await run.until(
            "its successor", lambda seen: changes(seen)[-2:] == [("engine-2", "lost"), ("engine-2", "added")]
        )

        await scale(run, tmp_path, "--as-configured")
        await run.until("one engine less", lambda seen: changes(seen)[-1] == ("engine-2", "removed"))
        assert run.history.of(EnginesChanged)[-1].serving == 2

        (pid,) = pids_that_write("rollout-0", tmp_path)
        assert send(pid)
        updates = len(run.history.of(LearnerUpdate))
        await run.until("more updates", lambda seen: len(seen.of(LearnerUpdate)) >= updates + 3)
        await run.until("word of its successor", lambda seen: len(parts(seen, "rollout-0")) == 3)
        assert parts(run.history, "rollout-0") == ["added", "lost", "added"]
        assert parts(run.history, "learner") == ["added"]

        run.launcher.send_signal(signal.SIGINT)
        assert await run.end() == 130, run.told()
        assert [end.outcome for end in run.history.of(RunFinished)] == ["stopped"]
        assert run.history.of(RunResumed) == []
        (log,) = tmp_path.glob("logs/*/collector.log")
        assert log.read_text().count("engines ready") == 1, "the collector was started again"
        assert "worker lost, its games are played again" in log.read_text()
        await run.prove(run_id(run))
        told = run_command(
            tmp_path, "sql", "SELECT count(*) FROM engine_changes WHERE type = 'engines-wanted'"
        )
        assert "2" in told.stdout, told


@pytest.mark.long
def test_what_cannot_be_scaled_is_said(tmp_path: Path) -> None:
    settings = ("learner.iterations=0", "backend=inline", "evaluation.opponents=[]", "name=small")
    done = run_command(tmp_path, "train", str(CONFIG), *(f"--set={setting}" for setting in settings))
    assert done.returncode == 0, done.stderr
    for arguments, said in (
        (["--engines", "2"], "has one engine in one process"),
        (["--engines", "0"], "Invalid value for '--engines'"),
        ([], "give a number, or --as-configured"),
    ):
        told = CliRunner().invoke(app, ["scale", "small", *arguments, "--data", str(tmp_path)])
        assert told.exit_code in (1, 2)
        assert said in f"{told.stderr}{told.exception}"


# -- a machine that is drained, and then lost --------------------------------------------------------------

_SETTINGS = (
    "learner.iterations=1000",
    "evaluation.opponents=[]",
    "collector.num_actors=2",
    "collector.num_rollout_workers=2",
)
_LOST = ("learner", "rollout-1")


def nodes(seen: History) -> dict[str, list[tuple[str, str]]]:
    """What came and went, and on which machine, by part."""
    found: dict[str, list[tuple[str, str]]] = {}
    for change in seen.of(PartChanged):
        found.setdefault(change.part, []).append((change.change, change.node))
    return found


def engines(seen: History, what: str) -> list[EnginesChanged]:
    return [change for change in seen.of(EnginesChanged) if change.change == what]


@pytest.mark.long
async def test_engines_leave_a_drained_machine_in_order_and_what_is_lost_with_it_is_recorded(
    ray_cluster: Clusters, tmp_path: Path
) -> None:
    # The second one gets the learner, an engine, and the rollout worker beside it.
    cluster = ray_cluster({"num_cpus": 2}, {"num_cpus": 2})
    head, (worker,) = cluster.head_node, cluster.worker_nodes
    run = LaunchedRun.train(tmp_path, *_SETTINGS)
    run.deadline_s = 600
    async with run:
        await run.until("all parts", lambda seen: len(nodes(seen)) == 3 and bool(seen.of(LearnerUpdate)))
        there, here = ("added", worker.node_id), ("added", head.node_id)
        assert nodes(run.history) == {"learner": [there], "rollout-0": [here], "rollout-1": [there]}
        drain(cluster, worker.node_id)
        await run.until("the engine's move", lambda seen: bool(engines(seen, "removed")))
        assert [(change.node, change.reason) for change in engines(run.history, "removed")] == [
            (worker.node_id, "its machine is being drained")
        ]
        await run.until("another for it", lambda seen: len(engines(seen, "added")) == 3)
        assert nodes(run.history)["rollout-1"] == [there], "what plays there stays until the machine goes"

        cluster.remove_node(worker, allow_graceful=False)
        updates = len(run.history.of(LearnerUpdate))
        await run.until("more updates", lambda seen: len(seen.of(LearnerUpdate)) >= updates + 2)
        await run.until("successors", lambda seen: all(nodes(seen)[part][-1] == here for part in _LOST))
        for part in _LOST:
            assert nodes(run.history)[part][1] == ("lost", worker.node_id)
        assert nodes(run.history)["rollout-0"] == [here]
        lost = [change for change in run.history.of(PartChanged) if change.change == "lost"]
        assert all(change.reason and bool(change.host) is bool(change.node) for change in lost)
        trained = [step for update in run.history.of(LearnerUpdate) for step in update.step_ids]
        assert len(trained) == len(set(trained))
        (log,) = tmp_path.glob("logs/*/collector.log")
        assert log.read_text().count("engines ready") == 1, "the collector was started again"
        run.interrupt()
        assert await run.end() == 130, run.told()
        (end,) = run.history.of(RunFinished)
        assert end.outcome == "stopped"
        asked = f"SELECT DISTINCT part FROM where_it_ran WHERE change = 'lost' AND node = '{worker.node_id}'"
        told = run_command(tmp_path, "sql", asked, "--csv")
        assert {*told.stdout.split()[1:]} >= {*_LOST}, told.stdout + told.stderr
        await run.prove(end.run_id)
