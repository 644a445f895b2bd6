"""On two machines: what is recorded of where a run computes when one is lost, or will be taken away."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from tests.launch.test_engine_pool import drain, patiently
from tests.whole_run.processes import History, LaunchedRun, run_command
from unstable_stream.events import EnginesChanged, LearnerUpdate, PartChanged, RunFinished, RunStarted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_SETTINGS = (
    "learner.iterations=1000",
    "evaluation.opponents=[]",
    "collector.num_actors=2",
    "collector.num_rollout_workers=2",
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Two machines; the second one gets the learner, an engine, and the rollout worker beside it."""
    made = patiently(lambda: Cluster(initialize_head=True, head_node_args={"num_cpus": 2}))
    patiently(lambda: made.add_node(num_cpus=2))
    yield made
    made.shutdown()


def nodes(seen: History) -> dict[str, list[tuple[str, str]]]:
    """What came and went, and on which machine, by part."""
    found: dict[str, list[tuple[str, str]]] = {}
    for change in seen.of(PartChanged):
        found.setdefault(change.part, []).append((change.change, change.node))
    return found


async def test_a_lost_machine_and_where_its_parts_went_are_recorded(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    head, (worker,) = cluster.head_node, cluster.worker_nodes
    run = LaunchedRun.train(tmp_path, *_SETTINGS)
    run.deadline_s = 600
    async with run:
        await run.until("all parts", lambda seen: len(nodes(seen)) == 3 and bool(seen.of(LearnerUpdate)))
        assert nodes(run.history) == {
            "learner": [("added", worker.node_id)],
            "rollout-0": [("added", head.node_id)],
            "rollout-1": [("added", worker.node_id)],
        }
        cluster.remove_node(worker, allow_graceful=False)
        moved = ("learner", "rollout-1")
        there = ("added", head.node_id)
        await run.until("successors", lambda seen: all(nodes(seen)[part][-1] == there for part in moved))
        for part in moved:  # Ray tried the lost machine again if it did not know yet
            assert nodes(run.history)[part][:2] == [("added", worker.node_id), ("lost", worker.node_id)]
        assert nodes(run.history)["rollout-0"] == [there]
        lost = [change for change in run.history.of(PartChanged) if change.change == "lost"]
        assert all(change.reason and bool(change.host) is bool(change.node) for change in lost)
        run.interrupt()
        assert await run.end() == 130, run.told()
        (run_id,) = {event.run_id for event in run.history.of(RunStarted)}
        assert [end.outcome for end in run.history.of(RunFinished)] == ["stopped"]
        asked = "SELECT count(*) AS parts, count(DISTINCT part) AS of_parts FROM where_it_ran"
        told = run_command(tmp_path, "sql", f"{asked} WHERE change = 'lost' AND node = '{worker.node_id}'")
        assert "3" in told.stdout, "learner, rollout worker and engine: " + told.stdout + told.stderr
        proof = run_command(tmp_path, "audit", run_id)
        assert proof.returncode == 0, proof.stdout


async def test_what_is_on_a_machine_that_is_drained_goes_elsewhere_in_order(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    head, (worker,) = cluster.head_node, cluster.worker_nodes
    run = LaunchedRun.train(tmp_path, *_SETTINGS)
    run.deadline_s = 600
    async with run:
        await run.until("all parts", lambda seen: len(nodes(seen)) == 3 and bool(seen.of(LearnerUpdate)))
        drain(cluster, worker.node_id)
        moved = ("learner", "rollout-1")
        await run.until("their moves", lambda seen: all(len(nodes(seen)[part]) == 3 for part in moved))
        there, went = ("added", worker.node_id), ("removed", worker.node_id)
        assert nodes(run.history)["learner"] == [there, went, ("added", head.node_id)]
        assert nodes(run.history)["rollout-1"] == [there, ("added", head.node_id), went]
        assert run.history.of(PartChanged)[-1].reason == "its machine is being drained"
        await run.until("the end of its engine", lambda seen: bool(engines_removed(seen)))
        cluster.remove_node(worker, allow_graceful=False)
        updates = len(run.history.of(LearnerUpdate))
        await run.until("more updates", lambda seen: len(seen.of(LearnerUpdate)) >= updates + 3)
        assert all(change.change != "lost" for change in run.history.of(PartChanged))
        trained = [step for update in run.history.of(LearnerUpdate) for step in update.step_ids]
        assert len(trained) == len(set(trained))
        run.interrupt()
        assert await run.end() == 130, run.told()
        (logs,) = tmp_path.glob("logs/*")
        assert "again" not in (logs / "collector.log").read_text()
        assert not (logs / "launcher.log").exists(), "a service was started again"
        (run_id,) = {event.run_id for event in run.history.of(RunStarted)}
        for command in ("audit", "verify"):
            proof = run_command(tmp_path, command, run_id)
            assert proof.returncode == 0, proof.stdout


def engines_removed(seen: History) -> list[EnginesChanged]:
    return [change for change in seen.of(EnginesChanged) if change.change == "removed"]
