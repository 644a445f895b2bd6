"""Engine and learner agree: what an engine samples with a checkpoint is on-policy for its learner."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.algorithms.learners.conftest import MakeLearner
from tests.algorithms.learners.samples import make_samples
from tests.inference.conftest import playing
from unstable_stream.algorithms import TrainingSample
from unstable_stream.inference.engine import Adapter, GenerationRequest, SamplingSettings


async def on_policy_samples(model: Path, adapter: Adapter | None) -> list[TrainingSample]:
    """What the transformers engine samples with this adapter."""
    prompts = [sample.prompt_token_ids.tolist() for sample in make_samples(12, seed=9)]
    settings = SamplingSettings(max_tokens=8, temperature=0.7)
    requests = [GenerationRequest(prompt, settings, adapter, seed=at) for at, prompt in enumerate(prompts)]
    async with playing(model) as engine:
        completions = await asyncio.gather(*map(engine.generate, requests))
    return [
        TrainingSample(
            f"s{index}",
            np.array(prompt, dtype=np.int32),
            np.array(completion.token_ids, dtype=np.int32),
            np.array(completion.logprobs, dtype=np.float32),
            advantage=1.0,
            temperature=0.7,
            truncated=completion.finish_reason == "length",
        )
        for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]


@pytest.mark.parametrize(("parameters", "last_layers"), [("lora", None), ("lora", 1), ("all", None)])
async def test_samples_of_the_engine_have_ratio_one(
    make_learner: MakeLearner, tiny_model: Path, parameters: str, last_layers: int | None
) -> None:
    lora = {"lora_rank": 4, "lora_alpha": 8, "last_layers": last_layers, "use_rslora": last_layers == 1}
    learner = make_learner(parameters=parameters, lora_cfg=lora)
    if parameters == "lora":
        adapted = {
            name.split(".")[2] for name, _ in learner.policy.model.named_parameters() if ".lora_" in name
        }
        assert adapted == ({"0", "1"} if last_layers is None else {"1"})
    for number in (1, 2, 3):
        learner.update(make_samples(8, seed=number), number)
    info = learner.save()
    checkpoint = Adapter("ckpt-000003", info.path, info.sha256, learner.probe())
    samples = await on_policy_samples(tiny_model, checkpoint)
    metrics = learner.update(samples, 4).metrics
    assert metrics["completion_tokens"] > 12
    assert metrics["is_ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["is_ratio_max"] == pytest.approx(1.0, abs=1e-2)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
async def test_dropout_of_the_base_model_does_not_act_in_training(
    make_learner: MakeLearner, tiny_model: Path, tmp_path: Path, gradient_checkpointing: bool
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.1}))
    samples = await on_policy_samples(model, None)
    learner = make_learner(model_name=str(model), gradient_checkpointing=gradient_checkpointing)
    metrics = learner.update(samples, 1).metrics
    assert metrics["is_ratio_mean"] == pytest.approx(1.0, abs=1e-3)
    assert metrics["is_ratio_max"] == pytest.approx(1.0, abs=1e-2)
