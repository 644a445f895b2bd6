"""The steps that outcomes promise of trajectories that cannot be decoded."""

from pathlib import Path

import msgspec

from tests.services.workers.test_learner_service import RUN, TURNS, lost_game, new_log, steps
from unstable_stream.events import game_id, trajectory_id
from unstable_stream.log.records import record_from_event
from unstable_stream.log.topics import load_topics
from unstable_stream.services.workers.dropped_steps import promised_steps


async def test_a_training_game_promises_its_steps_once_and_an_evaluation_none(tmp_path: Path) -> None:
    async with new_log(tmp_path) as log:
        await log.create_topics(list(load_topics().values()))
        lost = lost_game(0)
        evaluated = msgspec.structs.replace(
            lost_game(1), event_id="of an evaluation", game_id=game_id(RUN, "eval", 1), split="eval"
        )
        await log.append([record_from_event(event) for event in (lost, evaluated, lost)])
        wanted = {trajectory_id(game.game_id, 0) for game in (lost, evaluated)}
        found = await promised_steps(log, RUN, wanted, filter_opponent_invalid=False, model=None)
    assert found == {0: [step.event_id for step in steps(TURNS)]}
