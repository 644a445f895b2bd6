"""What was recorded after the newest checkpoint is repeated with the settings of its time, and compared."""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import made
from tests.history.proofs.recorded_run import copy_log, nth
from tests.services.workers.test_learner_service import (
    RUN,
    UPDATES,
    append,
    config,
    curve,
    killed,
    new_log,
    published,
    service,
    steps,
)
from tests.tiers import chosen
from unstable_stream.errors import LearnerError, RunError
from unstable_stream.events import LearnerUpdate, RunResumed, RunStarted
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.topics import load_topics
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import RunStatus
from unstable_stream.runs.recording import start_run
from unstable_stream.runs.resume import RecordedConfigs, resume_run

pytestmark = pytest.mark.longer

replace = msgspec.structs.replace
NEVER = 100  # updates between two checkpoints


def changed(settings: RunConfig, **sections: Mapping[str, Any]) -> RunConfig:
    """Return the settings with other values in these sections."""
    tree = settings.model_dump()
    for name, values in sections.items():
        # An algorithm of another type begins with its own defaults.
        tree[name] = dict(values) if "type" in values else {**tree[name], **values}
    return RunConfig.model_validate(tree)


async def begin(log: LocalLog, settings: RunConfig) -> None:
    """Record a run whose steps are there already."""
    await log.create_topics(list(load_topics().values()))
    await start_run(log, settings, RUN)
    await append(log, steps())


CHANGES: dict[str, dict[str, Mapping[str, Any]]] = {
    "rate": {"learner": {"learning_rate": 1e-3}},
    "fewer-updates": {"learner": {"iterations": UPDATES - 1}},
    "numbers": {
        "learner": {"grad_clip": 0.1, "weight_decay": 0.1, "optimizer_steps": 1, "mini_batch_size": 3},
        "sampling": {"max_tokens": 8},
    },
    "critic": {"algorithm": {"type": "a2c", "critic_learning_rate": 0.05}},
}


@chosen("change", ("fewer-updates", "critic"), ("rate", "numbers"))
async def test_a_crash_before_a_change_of_settings_ends_with_the_same_weights(
    change: str, tmp_path: Path
) -> None:
    """Killed twice: once before the change, once after it and before its first new update."""
    # Rate and entropy bonus fall with progress, so that the number of updates matters.
    first = changed(config(lr_final_fraction=0.0), algorithm={"type": "reinforce", "entropy_coef": 0.1})
    results = []
    for save_every in (1, NEVER):
        directory = tmp_path / str(save_every)
        before = changed(first, learner={"save_every": save_every})
        after = changed(before, **CHANGES[change])
        async with new_log(directory) as log:
            await begin(log, before)
            await killed(directory, log, before)
            for _ in range(2):
                await resume_run(log, RUN, after)
                if save_every == NEVER:
                    await killed(directory, log, after)
            last = after.learner.iterations
            assert await service(directory, after).train(log, asyncio.Event()) == last
            losses, weights = await curve(log)
            results.append((losses, weights[-1]))
            updates = (await published(log))[0]
    assert results[0] == results[1]
    assert [update.resumption for update in updates] == [0, 0, *[2] * (last - 2)]


@pytest.mark.parametrize("saved", [False, True])
async def test_a_critic_that_was_given_up_is_repeated_and_loaded_with_its_checkpoint(
    tmp_path: Path, saved: bool
) -> None:
    critic = changed(config(save_every=NEVER), algorithm={"type": "a2c", "critic_learning_rate": 0.05})
    saving = changed(critic, learner={"save_every": 1, "iterations": 1})
    without = changed(critic, algorithm={"type": "reinforce"})
    async with new_log(tmp_path) as log:
        await begin(log, saving if saved else critic)
        if saved:
            assert await service(tmp_path, saving).train(log, asyncio.Event()) == 1
            await resume_run(log, RUN, critic)
        await killed(tmp_path, log, critic)
        await resume_run(log, RUN, without)
        assert await service(tmp_path, without).train(log, asyncio.Event()) == UPDATES
        updates = (await published(log))[0]
    assert ["value_mean" in update.metrics for update in updates] == [True, True, False, False]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two updates and no checkpoint of them are recorded."""
    directory = tmp_path_factory.mktemp("crashed")

    async def record() -> None:
        async with new_log(directory) as log:
            await begin(log, config(save_every=NEVER))
            await killed(directory, log, config(save_every=NEVER))

    asyncio.run(record())
    return directory


def cut_otherwise(update: LearnerUpdate) -> LearnerUpdate:
    metrics = {**update.metrics, "padding_fraction": 0.9, "micro_batch_tokens_max": 7.0}
    return replace(update, metrics=metrics, computed_with={**update.computed_with, "learners": "8"})


def other_rate(update: LearnerUpdate) -> LearnerUpdate:
    metrics = {**update.metrics, "learning_rate": update.metrics["learning_rate"] * 0.99}
    return replace(update, metrics=metrics, computed_with={"dtype": "bfloat16"})


def other_entropy(factor: float, **changes: Any) -> Callable[[LearnerUpdate], LearnerUpdate]:
    def change(update: LearnerUpdate) -> LearnerUpdate:
        metrics = {**update.metrics, "entropy": update.metrics["entropy"] * factor}
        return replace(update, metrics=metrics, **changes)

    return change


@pytest.mark.parametrize(
    ("number", "change", "expected"),
    [
        (1, other_entropy(1 + 1e-12), r"update 2, trained again .* entropy = [\d.]+, recorded is [\d.]+\. "),
        (0, other_entropy(1 + 1e-6, computed_with={"torch": "1.0"}), None),
        (0, other_entropy(1 + 1e-6, computed_with={}), None),
        (1, cut_otherwise, None),
        (0, other_entropy(1.1, computed_with={"dtype": "bfloat16"}), None),
        (0, other_rate, r"1, .*learning_rate = 0.01, recorded is 0.0099.*dtype was bfloat16, here float32"),
        (0, other_entropy(1.1, computed_with={"torch": "1.0"}), r"1, .*entropy.*\(.*torch was 1.0, here"),
        (1, other_entropy(1.1, computed_with={}), r"recorded without what it was computed with"),
    ],
)
async def test_an_update_that_comes_out_otherwise_ends_the_resumption(
    crashed: Path,
    tmp_path: Path,
    number: int,
    change: Callable[[LearnerUpdate], LearnerUpdate],
    expected: str | None,
) -> None:
    shutil.copytree(crashed, tmp_path, dirs_exist_ok=True)
    async with new_log(tmp_path) as source, new_log(tmp_path / "copy") as log:
        await copy_log(source, log, nth(number, LearnerUpdate, change))
        resumed = service(tmp_path, config(save_every=NEVER)).train(log, asyncio.Event())
        says = rf"(?s){expected}.*fork {RUN} --at 0"
        with nullcontext() if expected is None else pytest.raises(LearnerError, match=says):
            assert await resumed == UPDATES


def recorded_configs(*rates: float) -> RecordedConfigs:
    """A start and resumptions 1,000 ms apart, each with another learning rate."""
    trees = [config(learning_rate=rate).model_dump(mode="json") for rate in rates]
    began = made(RunStarted, run_id=RUN, occurred_at_ms=0, config=trees[0])
    resumed = [
        made(RunResumed, run_id=RUN, occurred_at_ms=1000 * number, resumption=number, config=trees[number])
        for number in range(1, len(trees))
    ]
    return RecordedConfigs(dict(enumerate(RunStatus(RUN, began, event) for event in (None, *resumed))))


def update_of(at_ms: int, resumption: int | None) -> LearnerUpdate:
    return made(LearnerUpdate, run_id=RUN, occurred_at_ms=at_ms, resumption=resumption)


def test_an_update_names_its_configuration_or_has_that_of_its_time() -> None:
    configs = recorded_configs(0.1, 0.2, 0.3)

    def rate(at_ms: int, resumption: int | None) -> float:
        made_with = configs.of(update_of(at_ms, resumption))
        assert made_with is not None
        return made_with.learner.learning_rate

    assert rate(5000, 1) == 0.2, "the clock of its machine does not matter"
    assert [rate(at, None) for at in (-1, 0, 999, 1000, 1999, 9999)] == [0.1, 0.1, 0.1, 0.2, 0.2, 0.3]
    with pytest.raises(RunError, match=r"update 1 was made after resumption 3, and topic runs"):
        rate(0, 3)
    assert RecordedConfigs({}).of(update_of(0, None)) is None


def test_the_newest_start_with_a_configuration_is_the_one_of_a_learner() -> None:
    configs = recorded_configs(0.1, 0.2, 0.1)
    assert configs.number_of(config(learning_rate=0.1), None) == 2
    assert configs.number_of(config(learning_rate=0.2), None) == 1
    assert configs.number_of(config(learning_rate=0.3), None) is None
