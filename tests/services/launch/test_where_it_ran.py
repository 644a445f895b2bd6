"""On several machines: what is recorded of where a run computes when one is drained, and when one is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from tests.services.launch.test_engine_pool import drain, patiently
from tests.whole_run.processes import History, LaunchedRun, run_command
from unstable_stream.events import EnginesChanged, LearnerUpdate, PartChanged, RunFinished, RunStarted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_SETTINGS = (
    "learner.iterations=1000",
    "evaluation.opponents=[]",
    "collector.num_actors=2",
    "collector.num_rollout_workers=2",
)
_MOVED = ("learner", "rollout-1")


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


async def test_parts_leave_a_drained_machine_in_order_and_a_lost_one_is_recorded(
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
        # Where a machine is drained, its learner goes to the one with the most cores.
        other = patiently(lambda: cluster.add_node(num_cpus=3))
        drain(cluster, worker.node_id)
        await run.until("their moves", lambda seen: all(len(nodes(seen)[part]) == 3 for part in _MOVED))
        there, went, arrived = (
            ("added", worker.node_id),
            ("removed", worker.node_id),
            ("added", other.node_id),
        )
        assert nodes(run.history)["learner"] == [there, went, arrived]
        assert nodes(run.history)["rollout-1"] == [there, arrived, went]
        assert {change.reason for change in run.history.of(PartChanged) if change.change == "removed"} == {
            "its machine is being drained"
        }
        await run.until(
            "another engine for the one there",
            lambda seen: bool(engines(seen, "removed")) and len(engines(seen, "added")) == 3,
        )
        assert [change.reason for change in engines(run.history, "removed")] == [
            "its machine is being drained"
        ]
        cluster.remove_node(worker, allow_graceful=False)
        updates = len(run.history.of(LearnerUpdate))
        await run.until("more updates", lambda seen: len(seen.of(LearnerUpdate)) >= updates + 2)
        assert all(change.change != "lost" for change in run.history.of(PartChanged))
        trained = [step for update in run.history.of(LearnerUpdate) for step in update.step_ids]
        assert len(trained) == len(set(trained))
        (logs,) = tmp_path.glob("logs/*")
        assert "again" not in (logs / "collector.log").read_text()
        assert not (logs / "launcher.log").exists(), "a service was started again"

        cluster.remove_node(other, allow_graceful=False)
        at_last = ("added", head.node_id)
        await run.until("successors", lambda seen: all(nodes(seen)[part][-1] == at_last for part in _MOVED))
        await run.until(
            "an engine for the lost one",
            lambda seen: bool(engines(seen, "lost")) and engines(seen, "added")[-1].node == head.node_id,
        )
        for part in _MOVED:  # Ray tried the lost machine again if it did not know yet
            assert nodes(run.history)[part][3] == ("lost", other.node_id)
        assert nodes(run.history)["rollout-0"] == [at_last]
        lost = [change for change in run.history.of(PartChanged) if change.change == "lost"]
        assert all(change.reason and bool(change.host) is bool(change.node) for change in lost)
        run.interrupt()
        assert await run.end() == 130, run.told()
        (run_id,) = {event.run_id for event in run.history.of(RunStarted)}
        assert [end.outcome for end in run.history.of(RunFinished)] == ["stopped"]
        asked = "SELECT DISTINCT part FROM where_it_ran WHERE change = 'lost'"
        told = run_command(tmp_path, "sql", f"{asked} AND node = '{other.node_id}'", "--csv")
        parts = told.stdout.split()[1:]
        assert {*_MOVED} < {*parts}, told.stdout + told.stderr
        assert [part for part in parts if part.startswith("engine-")]
        for command in ("audit", "verify"):
            proof = run_command(tmp_path, command, run_id)
            assert proof.returncode == 0, proof.stdout


def engines(seen: History, what: str) -> list[EnginesChanged]:
    return [change for change in seen.of(EnginesChanged) if change.change == what]
