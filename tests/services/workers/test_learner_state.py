"""What a learner decides, and what it keeps over a restart, without a log or a model."""

from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from tests.builders import made
from tests.services.workers.test_game_schedule import stored
from tests.services.workers.test_learner_service import BATCH, RUN, config, steps
from unstable_stream.algorithms.collapse import Sign
from unstable_stream.algorithms.update_decisions import Admission, UpdateDecision
from unstable_stream.errors import LearnerError
from unstable_stream.events import CollapseWarning, DroppedStep, Event, LearnerUpdate, StepsDropped
from unstable_stream.log.port import TopicPartition
from unstable_stream.log.saved_state import UnusableStateError, pack_state
from unstable_stream.runs.config import parse_config
from unstable_stream.services.workers.learner_state import LearnerState, unpack_learner

STEPS = TopicPartition("steps", 0)


def state_of(**sections: Any) -> LearnerState:
    tree = config().model_dump(mode="json", exclude_unset=True)
    return LearnerState(parse_config(tree | sections), RUN, None)


def update(number: int, step_ids: tuple[str, ...] = (), **fields: Any) -> LearnerUpdate:
    positions = {"steps[0]": 100 * number, "game-outcomes[0]": number}
    return made(LearnerUpdate, run_id=RUN, update=number, step_ids=step_ids, positions=positions, **fields)


@pytest.mark.parametrize(
    ("fresh", "stale", "batch_delay_buffer", "expected"),
    [
        (0, 0, 1.0, "wait"),
        (BATCH - 1, 0, 1.0, "wait"),
        (BATCH, 0, 1.0, "draw"),
        (BATCH, 0, 2.0, "wait"),
        (2 * BATCH, 0, 2.0, "draw"),
        (0, BATCH, 1.0, "wait"),
        (BATCH, BATCH, 2.0, "draw"),  # at the bound no game starts, so no more steps would come
        (1, 2 * BATCH - 1, 1.0, "draw"),
        (0, 2 * BATCH, 1.0, "drop-stale"),
    ],
)
def test_what_to_do_before_an_update(
    fresh: int, stale: int, batch_delay_buffer: float, expected: str
) -> None:
    state = state_of(
        buffer={"max_staleness": 2},
        collector={"max_pending_steps": 2 * BATCH},
        learner={"batch_size": BATCH, "mini_batch_size": 8, "batch_delay_buffer": batch_delay_buffer},
    )
    built = steps(fresh + stale)
    built[:fresh] = [msgspec.structs.replace(step, policy_version=4) for step in built[:fresh]]
    state.add_steps(stored(step, offset) for offset, step in enumerate(built))
    assert state.next_action(5) == expected


@pytest.mark.parametrize(("checkpoint", "refused"), [(4, False), (1, True)])
def test_a_checkpoint_that_is_too_stale_itself_is_refused(checkpoint: int, refused: bool) -> None:
    state = state_of(buffer={"max_staleness": 2})
    state.last_checkpoint = checkpoint
    says = r"checkpoint, 1, is staler .* for update 6; raise it"
    with pytest.raises(LearnerError, match=says) if refused else nullcontext():
        state.check_staleness(6)


def decided(*admissions: Admission) -> UpdateDecision:
    return UpdateDecision((), admissions, (), {})


def test_the_second_update_in_a_row_that_trains_on_nothing_ends_the_run() -> None:
    state = state_of()
    assert "update 1 has no turn" in state.check_trains(decided("mask", "drop"), 1)
    assert state.check_trains(decided("train", "drop"), 2) == ""
    assert "1 are masked and 1 dropped" in state.check_trains(decided("mask", "drop"), 3)
    with pytest.raises(LearnerError, match="update 4 has no turn"):
        state.check_trains(decided("mask"), 4)


@pytest.mark.parametrize(("resumption", "raises"), [(1, True), (2, False), (None, False)])
def test_an_update_of_other_limits_does_not_count_as_the_first(resumption: int | None, raises: bool) -> None:
    """A resumption may have other limits, and it draws old steps first."""
    state = state_of()
    state.fold_updates([update(1, metrics={"optimizer_steps": 0.0}, resumption=1)], 0, resumption)
    with pytest.raises(LearnerError) if raises else nullcontext():
        assert state.check_trains(decided("mask"), 2)


def warning(number: int, factor: float) -> CollapseWarning:
    state = state_of()
    return msgspec.structs.replace(
        state._warning(Sign(number, number, "certain", "entropy", 0.01, 0.03, "it is certain"), 0),
        event_id=f"warning-{number}",
        learning_rate_factor=factor,
    )


def test_history_is_folded_once_in_any_order() -> None:
    built = steps(8)
    ids = [step.event_id for step in built]
    dropped = made(StepsDropped, run_id=RUN, update=2, dropped=(DroppedStep(ids[4], "stale"),))
    other_model = msgspec.structs.replace(update(9, (ids[7],)), model="other")
    history: list[Event] = [warning(2, 0.5), update(2, (ids[2], ids[3])), dropped, other_model]
    history += [update(1, (ids[0], ids[1])), update(2, (ids[5],)), warning(1, 1.0)]
    state = state_of()
    assert list(state.fold_updates(history, 0, None)) == [1, 2]
    state.add_steps(stored(step, offset) for offset, step in enumerate(built))
    assert {step.event_id for step in state.buffer.pending()} == set(ids[5:]), "the first update 2 counts"
    assert state.draw_positions == {STEPS: 200, TopicPartition("game-outcomes", 0): 2}
    assert (state.last_watched_update, [each.update for each in state.warnings]) == (2, [1, 2])
    assert [state.learning_rate_factor(number) for number in (1, 2, 3)] == [1.0, 1.0, 0.5]


def test_what_is_saved_is_restored_and_belongs_to_its_update() -> None:
    built = steps(8)
    state = state_of()
    state.add_steps(stored(step, offset) for offset, step in enumerate(built))
    state.fold_updates([update(1, (built[0].event_id,)), warning(1, 0.5)], 0, None)
    state.draw_positions = {STEPS: 6, TopicPartition("game-outcomes", 0): 3}
    state.other_positions = {TopicPartition("dead-letters", 0): 7}
    packed = pack_state(state.saved(1, "this-log"))
    saved = unpack_learner(packed, RUN, 1)
    assert set(saved.pending) == {step.event_id for step in built[1:6]}, "later steps are read again"
    assert saved.first_needed() == {STEPS: 1}
    restored = state_of()
    restored.restore(saved)
    assert restored.draw_positions == state.draw_positions
    assert restored.other_positions == state.other_positions
    restored.add_steps(stored(step, offset) for offset, step in enumerate(built[:6]))
    assert {step.event_id for step in restored.buffer.pending()} == set(saved.pending)
    again = unpack_learner(pack_state(restored.saved(1, "this-log")), RUN, 1)
    assert msgspec.structs.replace(again, used=saved.used) == saved
    for wrong in ((packed[:-1], RUN, 1), (packed, "another-run", 1), (packed, RUN, 2), (b"", RUN, 1)):
        with pytest.raises(UnusableStateError):
            unpack_learner(*wrong)
