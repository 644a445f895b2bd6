"""The steps that outcomes promise of trajectories that cannot be decoded."""

from pathlib import Path

import msgspec

from tests.services.workers.test_learner_service import RUN, TURNS, append, begun, config, lost_game, steps
from unstable_stream.events import game_id, trajectory_id
from unstable_stream.services.workers.learner_recovery import promised_steps
from unstable_stream.services.workers.learner_state import LearnerState


async def test_a_training_game_promises_its_steps_once_and_an_evaluation_none(tmp_path: Path) -> None:
    async with begun(tmp_path) as log:
        lost = lost_game(0)
        evaluated = msgspec.structs.replace(
            lost_game(1), event_id="of an evaluation", game_id=game_id(RUN, "eval", 1), split="eval"
        )
        await append(log, (lost, evaluated, lost))
        wanted = {trajectory_id(game.game_id, 0) for game in (lost, evaluated)}
        found = await promised_steps(log, LearnerState(config(), RUN, None), wanted)
    assert found == {0: [step.event_id for step in steps(TURNS)]}
