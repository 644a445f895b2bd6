"""An engine that does not answer as the adapters it was given, in a run on Ray."""

from pathlib import Path

import pytest

from tests.whole_run import noting_engines
from tests.whole_run.processes import LaunchedRun
from unstable_stream.events import AdapterProof, GameOutcome, LearnerUpdate, RunFinished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

UPDATES = 3


@pytest.mark.long
async def test_an_engine_that_fails_its_proof_plays_no_game_and_is_replaced(tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    run = LaunchedRun.train(
        tmp_path,
        f"engine={{type='{noting_engines.__file__}:Faulty', notes='{notes}'}}",
        'learner.parameters="lora"',
        "learner.learning_rate=0.02",  # the first update is far from the base model
        "learner.optimizer_steps=1",
        f"learner.iterations={UPDATES}",
        "buffer.max_staleness=0",
    )
    async with run:
        assert await run.end() == 0, run.told()
        (end,) = run.history.of(RunFinished)
        assert (end.outcome, end.updates) == ("completed", UPDATES)
        noted = notes.read_text().splitlines()
        assert noted.count("started") == 3
        assert noted[-1] == "closed", "the last one is closed, not only ended"
        (collector,) = tmp_path.glob("logs/*/collector.log")
        assert "not closed in order" not in collector.read_text()

        # Said in the log, in the run's notes, and on the screen.
        proofs = run.history.of(AdapterProof)
        assert {proof.model_uid for proof in proofs if proof.result == "failed"} == {"ckpt-000001"}
        (launcher,) = tmp_path.glob("logs/*/launcher.log")
        said = launcher.read_text().splitlines()
        assert len(said) == 2, said
        faults = ("the base model, as if it had no adapter", "another adapter, or the adapter is damaged")
        for line, fault in zip(said, faults, strict=True):
            assert "engine 0 died: AdapterError: adapter 'ckpt-000001'" in line
            assert f"the engine answers like {fault}" in line
            assert "starting it again" in line
            assert f"the engine answers like {fault}" in run.stderr.read_text()

        # No game of the adapter ended before an engine had proven it, and what trained was sampled with it.
        proven = [proof for proof in proofs if (proof.model_uid, proof.result) == ("ckpt-000001", "proven")]
        games = run.history.of(GameOutcome)
        with_it = [game for game in games if "ckpt-000001" in {seat.model_uid for seat in game.seats}]
        assert proven[0].occurred_at_ms <= min(game.occurred_at_ms for game in with_it)
        for update in run.history.of(LearnerUpdate):
            assert update.metrics["staleness_max"] == 0
            assert update.metrics["is_ratio_max"] == pytest.approx(1.0, abs=5e-3)

        await run.prove(end.run_id)
