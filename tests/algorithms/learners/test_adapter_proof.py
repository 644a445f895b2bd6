"""Engines reproduce what the learner computed with an adapter before they play with it, or refuse it."""

import contextlib
import hashlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from tests.algorithms.learners.conftest import Learner, MakeLearner
from tests.algorithms.learners.samples import make_samples
from tests.inference.conftest import playing
from unstable_stream.algorithms import TrainingSample
from unstable_stream.algorithms.learners.standard_learner import choose_tokens
from unstable_stream.errors import AdapterError
from unstable_stream.events import AdapterProbe, ProbeSequence, pack_floats, pack_tokens
from unstable_stream.inference.adapter_proof import AdapterProver, proof_tolerance
from unstable_stream.inference.engine import (
    Adapter,
    AdapterResult,
    Engine,
    GenerationRequest,
    ProvesAdapters,
    SamplingSettings,
)
from unstable_stream.inference.transformers.engine import TransformersEngine
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE


def trained(make_learner: MakeLearner, seed: int, root: Path) -> tuple[Learner, Adapter]:
    """A learner after three updates, and its adapter with the probe."""
    learner = make_learner(seed=seed, ckpt_root=root, lora_cfg={"lora_rank": 8, "lora_alpha": 16})
    for number in (1, 2, 3):
        learner.update(make_samples(8, seed=number + 10 * seed), number)
    info = learner.save(full=False)
    return learner, Adapter(f"ckpt-{seed:06d}", info.path, info.sha256, learner.probe())


@pytest.fixture
def adapters(make_learner: MakeLearner, tmp_path: Path) -> list[Adapter]:
    """Two adapters of different effect."""
    return [trained(make_learner, seed, tmp_path / str(seed))[1] for seed in (1, 2)]


@pytest_asyncio.fixture
async def engine(tiny_model: Path) -> AsyncIterator[TransformersEngine]:
    async with playing(tiny_model, max_loras=1) as engine:
        yield engine


def without_effect(adapter: Adapter, path: Path) -> Adapter:
    """The same uid and probe with B = 0 in its file: what plays is the base model."""
    shutil.copytree(adapter.path, path)
    tensors = load_file(path / WEIGHTS_FILE)
    save_file({name: t * 0 if "lora_B" in name else t for name, t in tensors.items()}, path / WEIGHTS_FILE)
    digest = hashlib.sha256((path / WEIGHTS_FILE).read_bytes()).hexdigest()
    return Adapter(adapter.uid, str(path), digest, adapter.probe)


async def play(engine: Engine, adapter: Adapter) -> None:
    await engine.generate(GenerationRequest([5, 6], SamplingSettings(1), adapter))


def results(engine: Engine) -> list[AdapterResult]:
    assert isinstance(engine, ProvesAdapters)
    return engine.take_adapter_results()


async def check_all(engine: Engine, adapters: list[Adapter], tmp_path: Path) -> None:
    """The engine has room for one adapter."""
    first, second = adapters
    # Loaded, kept, evicted by another, loaded again.
    for adapter in (first, first, second, first):
        await play(engine, adapter)
    found = results(engine)
    assert [(r.model_uid, r.result) for r in found] == [(a.uid, "proven") for a in (first, second, first)]
    for result in found:
        assert result.difference is not None
        assert result.base_difference is not None
        assert result.difference <= 0.001
        assert result.tolerance == proof_tolerance("float32", "float32") * max(
            1.0, result.base_difference / 0.6
        )
        assert result.base_difference > result.tolerance
        assert result.sha256 in (first.sha256, second.sha256)
    # Other uids: an engine holds one path for each.
    base = without_effect(first, tmp_path / "base")
    with pytest.raises(AdapterError, match=r"'ghost'.*answers like the base model.*expected at most 0\.0"):
        await play(engine, Adapter("ghost", base.path, base.sha256, base.probe))
    with pytest.raises(AdapterError, match=r"'mixed'.*answers like another adapter"):
        await play(engine, Adapter("mixed", second.path, second.sha256, first.probe))
    shutil.copytree(first.path, tmp_path / "changed")
    shutil.copy(Path(second.path) / WEIGHTS_FILE, tmp_path / "changed" / WEIGHTS_FILE)
    with pytest.raises(
        AdapterError, match=rf"'changed'.*is {second.sha256}, the checkpoint's {first.sha256}"
    ):
        await play(engine, Adapter("changed", str(tmp_path / "changed"), first.sha256, first.probe))
    assert [r.result for r in results(engine)] == ["failed"] * 3
    # They take no place, and fail again.
    with pytest.raises(AdapterError, match="'ghost'"):
        await play(engine, Adapter("ghost", base.path, base.sha256, base.probe))
    await play(engine, Adapter("old", second.path))
    await play(engine, first)
    assert [(r.model_uid, r.result) for r in results(engine)] == [
        ("ghost", "failed"),
        ("old", "unproven"),
        (first.uid, "proven"),
    ]


async def test_the_transformers_engine_plays_proven_adapters_only(
    engine: TransformersEngine, adapters: list[Adapter], tmp_path: Path
) -> None:
    await check_all(engine, adapters, tmp_path)


@pytest.mark.parametrize(
    ("base", "adapter", "engine", "result"),
    [
        (-2.0, -1.8, -1.7, "proven"),  # 0.1 of 0.2 nats
        (-2.0, -1.8, -1.5, "failed"),  # 0.3 of 0.2
        (-5.0, -2.0, -2.9, "proven"),  # 0.9 of 1.0: the adapter is 3 nats away
        (-5.0, -2.0, -3.1, "failed"),  # 1.1 of 1.0
        (-5.0, -2.0, -5.0, "failed"),  # the base model
        (-2.0, -1.842, -2.0, "indistinct"),  # the base model, 0.158 of 0.2 away
        (-2.0, -1.842, -1.93, "indistinct"),  # 0.07 of the way of 0.158: nearer the base model
        (-2.0, -1.842, -1.85, "proven"),  # nearer the adapter
        (-2.0, -1.96, -1.96, "indistinct"),  # 0.04 is what bfloat16 rounds by
        (-2.0, -2.0, -2.0, "indistinct"),  # an adapter that changes nothing yet
    ],
)
def test_an_adapter_far_from_its_base_model_may_round_by_more(
    base: float, adapter: float, engine: float, result: str
) -> None:
    sequence = ProbeSequence(
        prompt_token_ids=pack_tokens([1]),
        completion_token_ids=pack_tokens([2]),
        logprobs=pack_floats([adapter]),
        base_logprobs=pack_floats([base]),
    )
    prover = AdapterProver("bfloat16")
    probe = AdapterProbe(dtype="bfloat16", sequences=(sequence,))
    with contextlib.suppress(AdapterError):
        prover.judge(Adapter("ckpt-000001", "/nowhere"), probe, [[engine]], 0.0)
    assert [found.result for found in prover.take()] == [result]


def test_measuring_a_probe_changes_nothing(make_learner: MakeLearner, tmp_path: Path) -> None:
    """Training goes on bit for bit, with dropout; the probe is of the policy without dropout."""
    cfg = {"lora_rank": 8, "lora_alpha": 16, "lora_dropout": 0.3}
    probed, plain = (make_learner(lora_cfg=cfg, ckpt_root=tmp_path / name) for name in ("a", "b"))
    for number in (1, 2):
        for learner in (probed, plain):
            learner.update(make_samples(8, seed=number), number)
        assert probed.probe() == probed.probe()
    digests = [learner.save().sha256 for learner in (probed, plain)]
    assert digests[0] == digests[1]
    assert probed.policy.model.training


def test_of_a_short_completion_the_end_of_the_prompt_is_scored_too() -> None:
    def sample(prompt: int, completion: int) -> TrainingSample:
        ids = np.arange(prompt + completion, dtype=np.int32)
        logprobs = np.zeros(completion, dtype=np.float32)
        return TrainingSample("s", ids[:prompt], ids[prompt:], logprobs, 1.0)

    def chosen(prompt: int, completion: int) -> tuple[range, range]:
        ((before, scored),) = choose_tokens([sample(prompt, completion)])
        assert [*before, *scored] == [*range(before[0], scored[-1] + 1)]
        return range(before[0], before[-1] + 1), range(scored[0], scored[-1] + 1)

    assert chosen(40, 1) == (range(9, 33), range(33, 41))
    assert chosen(40, 20) == (range(16, 40), range(40, 48))
    assert chosen(5, 1) == (range(1), range(1, 6))
    assert chosen(1, 1) == (range(1), range(1, 2))
