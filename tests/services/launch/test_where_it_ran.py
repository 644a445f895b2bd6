"""On several machines: what is recorded of where a run computes when one is drained and then lost."""

from pathlib import Path

import pytest

from tests.services.launch.conftest import Clusters
from tests.services.launch.test_engine_pool import drain
from tests.whole_run.processes import History, LaunchedRun, run_command
from unstable_stream.events import EnginesChanged, LearnerUpdate, PartChanged, RunFinished

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

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
