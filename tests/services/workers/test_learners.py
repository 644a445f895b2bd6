"""Several trained models in one process: each is trained as if it were alone, also after a kill."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.services.workers.test_learner_service import (
    RUN,
    Killed,
    Result,
    append,
    begun,
    config,
    curve,
    published,
    service,
    steps,
)
from tests.tiers import chosen
from unstable_stream.algorithms.learners.checkpoint import CheckpointInfo, load_checkpoint
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.errors import FencedError, LearnerError
from unstable_stream.events import LearnerUpdate, Step, checkpoint_uid
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import readable_events
from unstable_stream.runs.config import RunConfig, parse_config
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.services.workers.learner import Learners
from unstable_stream.services.workers.learner_core import LearnerGroup

pytestmark = pytest.mark.longer

MODELS = ("first", "second")
STEPS = {"first": steps(64), "second": steps(64, first_game=100)}


def two(**learner: object) -> RunConfig:
    tree = config(**learner).model_dump(mode="json")
    tree["trained_models"] = [{"name": "first", "seats": [0]}, {"name": "second", "learning_rate": 3e-3}]
    return parse_config(tree)


def learners(directory: Path, settings: RunConfig) -> Learners:
    return Learners(settings, RUN, DataDir(directory), resolve_model("tiny-player"))


def interleaved() -> list[Step]:
    named = [
        [msgspec.structs.replace(step, model_uid=checkpoint_uid(0, model)) for step in STEPS[model]]
        for model in MODELS
    ]
    return [step for pair in zip(*named, strict=True) for step in pair]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Return the curves of the models, each trained in a run of its own."""

    async def learn(model: str) -> Result:
        directory = tmp_path_factory.mktemp(model)
        async with begun(directory, STEPS[model]) as log:
            rate = 1e-2 if model == "first" else 3e-3
            await service(directory, config(learning_rate=rate)).train(log, asyncio.Event())
            return await curve(log)

    return {model: asyncio.run(learn(model)) for model in MODELS}


async def test_each_is_trained_as_if_it_were_alone(tmp_path: Path, alone: dict[str, Result]) -> None:
    async with begun(tmp_path, interleaved()) as log:
        assert await learners(tmp_path, two()).train(log, asyncio.Event()) == 4
        assert {model: await curve(log, model) for model in MODELS} == alone


@chosen("save_every", [1], [3])
async def test_killed_at_any_save_they_end_with_the_same_weights(
    tmp_path: Path, alone: dict[str, Result], monkeypatch: pytest.MonkeyPatch, save_every: int
) -> None:
    settings = two(save_every=save_every)
    save, saves = StandardLearner.save, 0

    def save_or_die(self: StandardLearner, **named: Any) -> CheckpointInfo:
        nonlocal saves
        saves += 1
        if saves % 2:
            raise Killed
        return save(self, **named)

    monkeypatch.setattr(StandardLearner, "save", save_or_die)
    async with begun(tmp_path, interleaved()) as log:
        made = 0
        while made < 4:
            assert saves < 20, "it never comes to its end"
            with contextlib.suppress(Killed):
                made = await learners(tmp_path, settings).train(log, asyncio.Event())
        for model in MODELS:
            updates, digests = await curve(log, model)
            assert updates == alone[model][0]
            assert digests[-1] == alone[model][1][-1]
    names = sorted(path.name.rsplit("-", 1)[0] for path in DataDir(tmp_path).checkpoints(RUN).glob("ckpt-*"))
    kept = [1, 2, 3, 4] if save_every == 1 else [3, 4]
    assert names == [checkpoint_uid(number, model) for model in MODELS for number in kept]


async def test_they_hold_one_base_model(tmp_path: Path) -> None:
    made = learners(tmp_path, two())
    first, second = (service._learner for service in made._services)
    assert isinstance(first, StandardLearner)
    assert isinstance(second, StandardLearner)
    pairs = zip(first.policy.model.parameters(), second.policy.model.parameters(), strict=True)
    shared = {(mine.requires_grad, mine.data_ptr() == other.data_ptr()) for mine, other in pairs}
    assert shared == {(True, False), (False, True)}


async def weights(log: LocalLog, model: str) -> list[dict[str, torch.Tensor]]:
    """Return the weights of a model's checkpoints, in their order."""
    _, checkpoints = await published(log, model)
    return [load_checkpoint(Path(each.path)).weights for each in checkpoints if each.path is not None]


@pytest.mark.long
@pytest.mark.slow
async def test_with_two_learners_each_has_the_weights_of_one_also_after_a_learner_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with begun(tmp_path / "one", interleaved()) as log:
        assert await learners(tmp_path / "one", two(dtype="float32")).train(log, asyncio.Event()) == 4
        expected = {model: await curve(log, model) for model in MODELS}
        alike = {model: await weights(log, model) for model in MODELS}
    settings = two(dtype="float32", num_learners=2)
    update = LearnerGroup.update

    def without_the_other(group: LearnerGroup, samples: Any, number: int, *more: Any, **named: Any) -> Any:
        if number == 3:
            (other,) = group.process_ids
            os.kill(other, signal.SIGKILL)
        return update(group, samples, number, *more, **named)

    async with begun(tmp_path / "two", interleaved()) as log:
        both = learners(tmp_path / "two", settings)
        with monkeypatch.context() as patched:
            patched.setattr(LearnerGroup, "update", without_the_other)
            with pytest.raises(LearnerError, match="learner rank 1 ended during update 3, status -9"):
                await both.train(log, asyncio.Event())
        both.close()
        again = learners(tmp_path / "two", settings)
        assert await again.train(log, asyncio.Event()) == 4
        again.close()
        for model in MODELS:
            updates, digests = await curve(log, model)
            assert len(digests) == 5
            for (number, step_ids, dropped, loss), of_one in zip(updates, expected[model][0], strict=True):
                assert (number, step_ids, dropped) == of_one[:3]
                assert loss == pytest.approx(of_one[3], rel=1e-3, abs=1e-5)
            for found, of_one_learner in zip(await weights(log, model), alike[model], strict=True):
                torch.testing.assert_close(found, of_one_learner, rtol=1e-3, atol=2e-4)


async def test_one_that_is_fenced_ends_all(tmp_path: Path) -> None:
    async with begun(tmp_path, interleaved()) as log:
        training = asyncio.ensure_future(learners(tmp_path, two(iterations=9)).train(log, asyncio.Event()))
        consumer = await log.consumer([LearnerUpdate.TOPIC])
        await consumer.seek(await log.beginning_offsets(LearnerUpdate.TOPIC))
        made = 0
        while made < 4:  # all that there are steps for
            assert not training.done(), training.result()
            found = readable_events(await consumer.poll(timeout_s=1.0))
            made += sum(isinstance(event, LearnerUpdate) and event.model == "second" for event in found)
        await consumer.close()
        taken_over = await log.producer(f"learner/{RUN}/second")
        more = steps(64, first_game=200)
        uid = checkpoint_uid(4, "second")
        await append(log, [msgspec.structs.replace(step, model_uid=uid) for step in more])
        with pytest.raises(FencedError, match="learner-test/second"):
            await training
        await taken_over.close()
        assert len((await curve(log, "second"))[0]) == 4
