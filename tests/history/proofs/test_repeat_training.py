"""Updates are trained on again from the log: what was changed in log or checkpoints is found and named."""

import asyncio
import shutil
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from tests.history.proofs.recorded_run import copy_log, nth
from tests.services.workers.test_learner_service import RUN, UPDATES, config, new_log, published, service
from tests.services.workers.test_recorded_updates import begin, changed
from unstable_stream.events import LearnerUpdate, Step
from unstable_stream.history.proofs.ledger import Evidence
from unstable_stream.history.proofs.repeat_training import TrainingRepeated, choose_stretches, repeat_training
from unstable_stream.log.port import StoredRecord
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.resume import resume_run

pytestmark = pytest.mark.longer

replace = msgspec.structs.replace


async def record(directory: Path, settings: RunConfig) -> None:
    """Two updates with one learning rate, the others with another one."""
    first = changed(settings, learner={"iterations": UPDATES // 2})
    then = changed(settings, learner={"learning_rate": 1e-3})
    async with new_log(directory) as log:
        await begin(log, first)
        await service(directory, first).train(log, asyncio.Event())
        await resume_run(log, RUN, then)
        await service(directory, then).train(log, asyncio.Event())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a run with an adapter and a checkpoint of every second update."""
    directory = tmp_path_factory.mktemp("trained")
    asyncio.run(record(directory, config(save_every=2)))
    return directory


async def repeat(
    directory: Path, updates: int | None = None, change: Callable[[StoredRecord], bytes] | None = None
) -> TrainingRepeated:
    async with AsyncExitStack() as opened:
        log = await opened.enter_async_context(new_log(directory))
        if change is not None:
            whole, log = log, await opened.enter_async_context(new_log(directory / "changed"))
            await copy_log(whole, log, change)
        evidence = await Evidence.read(log, RUN)
        checkpoints = (await evidence.ledger()).checkpoints
        located = DataDir(directory).located
        return await repeat_training(evidence, checkpoints, updates=updates, located=located)


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Path:
    """A copy of the data directory, to be changed."""
    shutil.copytree(recorded, tmp_path / "data")
    return tmp_path / "data"


async def test_every_update_comes_out_bit_by_bit(recorded: Path) -> None:
    result = await repeat(recorded)
    assert result.updates.problems == result.weights.problems == []
    assert result.summary() == (
        "4 of 4 updates trained again: metrics equal bit by bit; sha256 of 2 of 2 checkpoints equal"
    )


async def test_all_parameters_come_out_bit_by_bit(tmp_path: Path) -> None:
    await record(tmp_path, config(parameters="all", learning_rate=1e-3))
    result = await repeat(tmp_path, 2)
    assert result.summary() == (
        "2 of 2 updates trained again: metrics equal bit by bit; sha256 of 2 of 2 checkpoints equal"
    )


async def test_a_sample_begins_at_checkpoints(copied: Path) -> None:
    """Without optimizer states only those can be reached that come before the first one."""
    result = await repeat(copied, 1)
    assert result.summary().startswith(
        "2 of 2 updates trained again: metrics equal bit by bit; sha256 of 1 of 1"
    )
    for file in copied.glob("checkpoints/*/*/optimizer.pt"):
        file.unlink()
    result = await repeat(copied, 4, change=nth(0, LearnerUpdate, other_entropy))
    assert "update 1, trained again" in result.updates.problems[0]
    assert result.summary().startswith("1 of 2 updates trained again: 1 with other metrics bit by bit")


def other_entropy(update: LearnerUpdate) -> LearnerUpdate:
    return replace(update, metrics={**update.metrics, "entropy": update.metrics["entropy"] * 1.001})


async def test_a_changed_metric_is_named(copied: Path) -> None:
    result = await repeat(copied, change=nth(2, LearnerUpdate, other_entropy))
    (problem,) = result.updates.problems
    assert problem.startswith("training: learner-updates[0]@")
    assert "update 3, trained again from its recorded steps, gives entropy = " in problem
    assert result.summary().startswith("3 of 4 updates trained again: 1 with other metrics bit by bit")


async def test_a_changed_reward_is_found_in_the_update_that_trained_on_it(copied: Path) -> None:
    async with new_log(copied) as log:
        first = (await published(log))[0][0].step_ids[0]

    def raised(record: StoredRecord) -> bytes:
        def other(step: Step) -> Step:
            return replace(step, reward=step.reward + 1.0) if step.event_id == first else step

        return nth(0, Step, other)(record)

    result = await repeat(copied, change=raised)
    assert result.updates.compared == result.updates.differing == 1
    assert "update 1, trained again" in result.updates.problems[0]


async def test_an_update_of_another_machine_is_compared_within_the_tolerance(copied: Path) -> None:
    def elsewhere(update: LearnerUpdate) -> LearnerUpdate:
        return replace(other_entropy(update), computed_with={**update.computed_with, "threads": "64"})

    result = await repeat(copied, change=nth(0, LearnerUpdate, elsewhere))
    assert result.updates.problems == []
    assert result.summary() == (
        "4 of 4 updates trained again: metrics equal within 2% or 0.005 (threads was 64, here 1), "
        "2 bit by bit; sha256 of 1 of 1 checkpoints equal"
    ), "the weights are not those of then to the last bit before the next checkpoint, which is loaded"


async def test_a_damaged_checkpoint_is_named_and_the_rest_repeated(copied: Path) -> None:
    (weights,) = copied.glob("checkpoints/*/ckpt-000002-*/adapter_model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    result = await repeat(copied, UPDATES)
    (problem,) = result.updates.problems
    assert "update 3 cannot be trained again" in problem
    assert f"{weights} is damaged" in problem
    assert result.weights.compared == 1


@pytest.mark.parametrize(
    ("starts", "saved", "wanted", "expected"),
    [
        ({0, 1, 2, 3, 4, 5}, range(1, 7), 1, [[6]]),
        ({0, 1, 2, 3, 4, 5}, range(1, 7), 2, [[1], [6]]),
        ({0, 1, 2, 3, 4, 5}, range(1, 7), 3, [[1], [4], [6]]),
        ({0, 1, 2, 3, 4, 5}, range(1, 7), 99, [[1], [2], [3], [4], [5], [6]]),
        ({0, 3}, {3, 6}, 1, [[4, 5, 6]]),
        ({0, 3}, {3, 6}, 4, [[1, 2, 3], [4, 5, 6]]),
        ({0, 3}, {3}, 1, [[4, 5, 6]]),
        ({0, 3}, {3, 6}, None, [[1, 2, 3, 4, 5, 6]]),
        ({3}, {3, 6}, None, [[4, 5, 6]]),
        ({9}, {3, 6}, 1, []),
    ],
)
def test_a_sample_is_spread_over_the_updates_that_can_be_reached(
    starts: Collection[int], saved: Collection[int], wanted: int | None, expected: list[list[int]]
) -> None:
    assert choose_stretches([1, 2, 3, 4, 5, 6], starts, saved, wanted) == expected
