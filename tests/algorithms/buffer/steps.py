"""Steps for buffer tests, numbered like a run's."""

from tests.builders import made
from unstable_stream.events import DroppedStep, LearnerUpdate, Step

RUN = "run"


def make_step(game_index: int, turn_index: int = 0, *, policy_version: int = 0) -> Step:
    """The step of one turn: equal arguments give equal ids."""
    return made(Step, run_id=RUN, game_index=game_index, turn_index=turn_index, policy_version=policy_version)


def make_update(number: int, step_ids: list[str], dropped: tuple[DroppedStep, ...] = ()) -> LearnerUpdate:
    """What the learner records of an update."""
    return made(LearnerUpdate, run_id=RUN, update=number, step_ids=tuple(step_ids), dropped=dropped)
