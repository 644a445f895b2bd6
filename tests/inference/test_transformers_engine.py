"""The batching engine against one row at a time in transformers, with PEFT's adapter."""

import asyncio
import math
import random
import shutil
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch as safetensors_torch
import torch
import transformers
from transformers import AutoModelForCausalLM

from tests.algorithms.test_scoring import SHAPE
from tests.inference.conftest import playing
from tests.inference.reference import Reference
from tests.inference.tiny_model import EOS_TOKEN_ID, VOCABULARY, build_adapter, build_tiny_model
from tests.tiers import chosen
from unstable_stream.errors import ConfigError, EngineError
from unstable_stream.inference.engine import (
    Adapter,
    Completion,
    GenerationRequest,
    SamplingSettings,
    uniforms,
)
from unstable_stream.inference.transformers import engine as transformers_engine
from unstable_stream.inference.transformers.engine import TransformersEngine

pytestmark = pytest.mark.longer

CONTEXT = 256
BOTH_OR_LONG = chosen("checkpoints", ["both"], ("adapters", "whole models"), indirect=True)


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[TransformersEngine]:
    """A fresh engine of the tiny model."""
    async with playing(tiny_model) as made:
        yield made


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


async def together(engine: TransformersEngine, requests: Iterable[GenerationRequest]) -> list[Completion]:
    return await asyncio.gather(*map(engine.generate, requests))


def _prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(5, len(VOCABULARY)), k=length)


@chosen(
    "checkpoints, temperature, top_p",
    [("adapters", 1.0, 1.0), ("whole models", 0.6, 0.9), ("both", 1.7, 0.5)],
    [("both", 1.0, 1.0), ("both", 0.6, 0.9)],
    indirect=["checkpoints"],
)
async def test_mixed_batch_equals_one_row_without_cache(
    engine: TransformersEngine,
    reference: Reference,
    checkpoints: list[Adapter],
    temperature: float,
    top_p: float,
) -> None:
    """Base model and three adapters, unequal lengths, joining at different times: each as if alone."""
    settings = SamplingSettings(max_tokens=12, temperature=temperature, top_p=top_p)
    choices: list[Adapter | None] = [None, *checkpoints]
    prompts = [_prompt(index, length) for index, length in enumerate([3, 20, 1, 65, 20, 7, 64, 11])]

    async def ask(index: int) -> Completion:
        if index >= 5:
            # Joins while the others are being decoded.
            await engine.generate(GenerationRequest(prompts[0], SamplingSettings(max_tokens=2), seed=index))
        return await engine.generate(
            GenerationRequest(prompts[index], settings, choices[index % 4], seed=index)
        )

    completions = await asyncio.gather(*(ask(index) for index in range(len(prompts))))
    for index, completion in enumerate(completions):
        expected = reference.logprobs(choices[index % 4], prompts[index], completion.token_ids, settings)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    assert max(len(completion.token_ids) for completion in completions) == 12


@BOTH_OR_LONG
async def test_samples_do_not_depend_on_the_batch(
    engine: TransformersEngine, checkpoints: list[Adapter]
) -> None:
    """The same seeds give the same tokens alone and among 60 others that come and go."""
    requests = [
        GenerationRequest(
            _prompt(index, 3 + index % 17),
            SamplingSettings(1 + index % 9),
            (None, *checkpoints)[index % 4],
            seed=index,
        )
        for index in range(60)
    ]
    beside = await together(engine, requests)
    alone = [await engine.generate(request) for request in requests]
    assert [completion.token_ids for completion in beside] == [completion.token_ids for completion in alone]
    for one, other in zip(beside, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


async def test_seeds_differ_and_none_is_random(engine: TransformersEngine) -> None:
    """Sixteen seeds, and sixteen times no seed, do not all give one and the same completion."""
    settings = SamplingSettings(max_tokens=6)
    for seeds in (list(range(16)), [None] * 16):
        requests = [GenerationRequest([5, 6, 7], settings, seed=seed) for seed in seeds]
        completions = await together(engine, requests)
        assert len({tuple(completion.token_ids) for completion in completions}) > 8


async def test_first_token_has_the_models_frequencies(
    engine: TransformersEngine, reference: Reference
) -> None:
    """Over 3000 seeds, tokens occur as often as they should (chi-squared, 99.9 % quantile)."""
    settings = SamplingSettings(max_tokens=1)
    requests = [GenerationRequest([5, 6, 7], settings, seed=seed) for seed in range(3000)]
    drawn = await together(engine, requests)
    expected = reference.logits(None, [5, 6, 7])[-1].double().softmax(-1).numpy() * 3000
    found = np.bincount([completion.token_ids[0] for completion in drawn], minlength=len(VOCABULARY))
    common = expected >= 5
    statistic = float((((found - expected) ** 2) / expected)[common].sum())
    assert common.sum() >= 10
    # 0.999 quantile of chi-squared by Wilson and Hilferty (1931).
    freedom = int(common.sum()) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3


async def test_greedy_takes_the_most_probable_token(engine: TransformersEngine, reference: Reference) -> None:
    """Temperature 0 follows the argmax; log-probabilities are those at temperature 1 without top-p."""
    prompt = _prompt(3, 9)
    greedy = await engine.generate(GenerationRequest(prompt, SamplingSettings(5, temperature=0.0, top_p=0.1)))
    expected = reference.greedy(None, prompt, 5)
    assert greedy.token_ids == expected.token_ids
    assert greedy.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_ends_with_the_stop_token_included(engine: TransformersEngine) -> None:
    """A caller's stop token and the model's own end token close the completion and stay in it."""
    settings = SamplingSettings(max_tokens=30)
    free = await engine.generate(GenerationRequest([5, 6, 7], settings, seed=4))
    at, stop = next(
        (at, token) for at, token in enumerate(free.token_ids) if at >= 2 and token not in free.token_ids[:at]
    )
    stopped = await engine.generate(
        GenerationRequest([5, 6, 7], SamplingSettings(30, stop_token_ids=(stop,)), seed=4)
    )
    assert (stopped.token_ids, stopped.finish_reason) == (free.token_ids[: at + 1], "stop")
    requests = [GenerationRequest([5, 6, 7], settings, seed=seed) for seed in range(40)]
    many = await together(engine, requests)
    ended = [completion for completion in many if EOS_TOKEN_ID in completion.token_ids]
    assert ended
    for completion in ended:
        assert completion.finish_reason == "stop"
        assert completion.token_ids.index(EOS_TOKEN_ID) == len(completion.token_ids) - 1
    for completion in many:
        if completion not in ended:
            assert (len(completion.token_ids), completion.finish_reason) == (30, "length")


async def test_context_clips_completions_and_refuses_prompts(engine: TransformersEngine) -> None:
    """What does not fit is said with both lengths; what half fits is cut at the context's end."""
    clipped = await engine.generate(GenerationRequest(_prompt(1, CONTEXT - 2), SamplingSettings(50), seed=1))
    assert len(clipped.token_ids) <= 2
    with pytest.raises(EngineError, match=r"256 tokens and the context 256 \(max_model_len\)"):
        await engine.generate(GenerationRequest(_prompt(1, CONTEXT)))


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], SamplingSettings(), "prompt is empty"),
        ([5, 99], SamplingSettings(), "token ids from 5 to 99"),
        ([5], SamplingSettings(max_tokens=0), "max_tokens is 0"),
        ([5], SamplingSettings(temperature=-1.0), "temperature is -1.0"),
        ([5], SamplingSettings(top_p=0.0), "top_p is 0.0"),
    ],
)
async def test_refuses_impossible_requests(
    engine: TransformersEngine, prompt: list[int], sampling: SamplingSettings, message: str
) -> None:
    """A bad request is its caller's alone."""
    with pytest.raises(EngineError, match=message):
        await engine.generate(GenerationRequest(prompt, sampling))
    assert (await engine.generate(GenerationRequest([5], SamplingSettings(2)))).token_ids


async def test_bad_adapters_fail_only_their_own_requests(
    engine: TransformersEngine, adapters: list[Adapter], tmp_path: Path
) -> None:
    """Missing, of another model's shape, or a second directory under one uid: no one else fails."""
    narrow = build_tiny_model(tmp_path / "narrow", hidden_size=64)
    foreign = build_adapter(narrow, tmp_path / "foreign", seed=1)
    missing = Adapter("gone", str(tmp_path / "gone"))
    renamed = Adapter(adapters[0].uid, adapters[1].path)
    settings = SamplingSettings(max_tokens=3)
    results = await asyncio.gather(
        *(
            engine.generate(GenerationRequest([5, 6], settings, adapter, seed=1))
            for adapter in (adapters[0], missing, foreign, renamed, adapters[1])
        ),
        return_exceptions=True,
    )
    assert isinstance(results[0], Completion)
    assert isinstance(results[4], Completion)
    for result, words in zip(
        results[1:4], ("cannot be read from", "to 64 features at", "never reloaded in place"), strict=True
    ):
        assert isinstance(result, EngineError)
        assert words in str(result)
    # A path that was wrong once may be put right.
    mended = Adapter("gone", str(shutil.copytree(adapters[2].path, tmp_path / "mended")))
    assert (await engine.generate(GenerationRequest([5, 6], settings, mended, seed=1))).token_ids


async def test_a_whole_model_of_another_shape_is_refused(
    engine: TransformersEngine, whole_models: list[Adapter], tmp_path: Path
) -> None:
    """It fails its own requests, and says at which layer it differs."""
    narrow = Adapter("narrow", str(build_tiny_model(tmp_path / "narrow", hidden_size=64)))
    cut = Adapter("cut", str(shutil.copytree(whole_models[0].path, tmp_path / "cut")))
    Path(cut.path, "model.safetensors").write_bytes(b"cut short")
    settings = SamplingSettings(max_tokens=3)
    for wrong, says in (
        (narrow, r"has shape \[40, 64\] at 'model.embed_tokens.weight'"),
        (cut, "cannot be read from"),
    ):
        with pytest.raises(EngineError, match=says):
            await engine.generate(GenerationRequest([5, 6], settings, wrong, seed=1))
    assert (await engine.generate(GenerationRequest([5, 6], settings, whole_models[1], seed=1))).token_ids


@BOTH_OR_LONG
async def test_least_recently_used_adapter_makes_room(tiny_model: Path, checkpoints: list[Adapter]) -> None:
    """Two places, three adapters at once: all served, never more than two in memory, same results."""
    settings = SamplingSettings(max_tokens=8)
    requests = [
        GenerationRequest(_prompt(index, 9), settings, checkpoints[index % 3], seed=index)
        for index in range(24)
    ]
    async with playing(tiny_model, max_loras=2) as small, playing(tiny_model, max_loras=3) as large:
        bounded, free = await together(small, requests), await together(large, requests)
        assert [each.token_ids for each in bounded] == [each.token_ids for each in free]
        assert len(small._decoder.adapters.loaded()) == 2
        for index in (0, 1, 0, 2):
            await small.generate(requests[index])
        assert small._decoder.adapters.loaded() == [checkpoints[0].uid, checkpoints[2].uid]


async def test_full_store_and_full_batch_make_requests_wait(tiny_model: Path) -> None:
    """With room for three rows, or with memory for two, forty requests get what they would get alone."""
    requests = [
        GenerationRequest(_prompt(index, 5 + index), SamplingSettings(2 + index % 5), seed=index)
        for index in range(40)
    ]
    one_token = 2 * 2 * 2 * 32 * 4  # layers, keys and values, heads, head size, bytes
    limits = [{}, {"max_parallel_seq": 3}, {"kv_cache_bytes": 2 * 64 * one_token}, {"max_batch_tokens": 1}]
    found = []
    for some in limits:
        async with playing(tiny_model, **some) as engine:
            found.append([completion.token_ids for completion in await together(engine, requests)])
    assert found == [found[0]] * len(limits)


async def test_hundreds_of_callers_and_stats(engine: TransformersEngine, adapters: list[Adapter]) -> None:
    """300 callers, 3 turns each: all are answered and counted, and nothing is left behind."""
    settings = SamplingSettings(max_tokens=4)

    async def game(number: int) -> int:
        tokens = 0
        for turn in range(3):
            request = GenerationRequest(
                _prompt(number, 12 + turn), settings, adapters[number % 3], seed=number
            )
            tokens += len((await engine.generate(request)).token_ids)
        return tokens

    tokens = sum(await asyncio.gather(*map(game, range(300))))
    stats = engine.stats()
    assert (stats.queued, stats.running, stats.completions, stats.completion_tokens) == (0, 0, 900, tokens)
    assert stats.tokens_per_s > 0


async def test_cancelled_callers_give_up_their_place(tiny_model: Path) -> None:
    """Cancelling frees the place at once: the next caller need not wait for 200 tokens."""
    endless = SamplingSettings(max_tokens=200, temperature=1.0)
    async with playing(tiny_model, max_parallel_seq=1) as engine:
        baseline = engine.stats().completion_tokens
        seed = await _seed_of_a_long_completion(engine, endless)
        tasks = [
            asyncio.create_task(engine.generate(GenerationRequest([5], endless, seed=seed)))
            for _ in range(20)
        ]
        before = engine.stats().completion_tokens
        assert before > baseline
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
        await engine.generate(GenerationRequest([6], SamplingSettings(max_tokens=1)))
        # Twenty completions of 100 tokens and more were wanted; at most a fraction of one was computed.
        assert engine.stats().completion_tokens - before < 100
        assert (engine.stats().queued, engine.stats().running) == (0, 0)


async def _seed_of_a_long_completion(engine: TransformersEngine, settings: SamplingSettings) -> int:
    for seed in range(1000):
        completion = await engine.generate(GenerationRequest([5], settings, seed=seed))
        if len(completion.token_ids) > 100:
            return seed
    raise AssertionError("no seed gives more than 100 tokens")


async def test_failure_in_the_thread_reaches_every_caller(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug or lost device fails running, waiting and later callers alike; none hangs."""
    engine = TransformersEngine(str(tiny_model), device="cpu", num_threads=1, max_parallel_seq=2)

    def broken(*_: object) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr(transformers_engine, "sample", broken)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    results = await asyncio.gather(
        *(engine.generate(GenerationRequest([5, 6])) for _ in range(10)), return_exceptions=True
    )
    for result in results:
        assert isinstance(result, EngineError)
        assert "RuntimeError: device lost" in str(result)
    with pytest.raises(EngineError, match="device lost"):
        await engine.generate(GenerationRequest([5, 6]))
    await engine.close()


async def test_diverged_adapter_fails_only_its_own_requests(
    engine: TransformersEngine, adapters: list[Adapter], tmp_path: Path
) -> None:
    """Weights that are not numbers are an error naming the adapter, and spare the others."""
    path = Path(shutil.copytree(adapters[0].path, tmp_path / "diverged"))
    tensors = safetensors_torch.load_file(path / "adapter_model.safetensors")
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name].fill_(float("nan"))
    safetensors_torch.save_file(tensors, path / "adapter_model.safetensors")
    settings = SamplingSettings(max_tokens=4)
    bad, good = await asyncio.gather(
        engine.generate(GenerationRequest(_prompt(1, 30), settings, Adapter("diverged", str(path)), seed=1)),
        engine.generate(GenerationRequest([5, 6], settings, adapters[0], seed=1)),
        return_exceptions=True,
    )
    assert isinstance(bad, EngineError)
    assert "'diverged'" in str(bad)
    assert isinstance(good, Completion)
    # Nor does what the diverged row left behind reach a short row that takes its place beside a longer one.
    later: list[Completion] = []
    for seed in range(6):
        later += await together(
            engine, [GenerationRequest(_prompt(seed, length), settings, seed=seed) for length in (2, 25)]
        )
    for completion in (good, *later):
        assert all(math.isfinite(logprob) for logprob in completion.logprobs)


async def test_close_fails_what_is_left_and_may_be_repeated(engine: TransformersEngine) -> None:
    """Callers of a closed engine get an error at once."""
    pending = asyncio.create_task(engine.generate(GenerationRequest([5], SamplingSettings(200), seed=1)))
    await asyncio.sleep(0)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await pending
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(GenerationRequest([5]))


def test_missing_model_is_one_line(tmp_path: Path) -> None:
    """A directory that does not exist, and one without a model."""
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "nowhere", tmp_path / "empty"):
        with pytest.raises(ConfigError, match=path.name) as caught:
            TransformersEngine(str(path))
        assert "\n" not in str(caught.value)


def test_uniforms_are_uniform_and_unrelated() -> None:
    """Mean and variance over positions and over seeds, no correlation between neighbours, all in [0, 1)."""
    grid = uniforms(
        np.repeat(np.arange(400, dtype=np.uint64), 400), np.tile(np.arange(400, dtype=np.uint64), 400)
    ).reshape(400, 400)
    assert grid.min() >= 0
    assert grid.max() < 1
    # Standard error of the mean of 160,000 is 0.0007, of a correlation 0.0025.
    assert abs(float(grid.mean()) - 0.5) < 0.003
    assert abs(float(grid.var()) - 1 / 12) < 0.001
    assert abs(float(np.corrcoef(grid[1:].ravel(), grid[:-1].ravel())[0, 1])) < 0.01
    assert abs(float(np.corrcoef(grid[:, 1:].ravel(), grid[:, :-1].ravel())[0, 1])) < 0.01
    assert abs(float(np.corrcoef(grid.ravel(), grid.T.ravel())[0, 1])) < 0.01


@pytest.mark.parametrize(
    ("family", "own"),
    [
        (transformers.LlamaConfig, {}),
        (
            transformers.Gemma3TextConfig,
            {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        ),
    ],
)
async def test_other_families_of_models(family: type, own: dict[str, Any], tmp_path: Path) -> None:
    """Multi-query heads, and layers that look back 8 tokens only, in prompts and while decoding."""
    shape = SHAPE | {"vocab_size": len(VOCABULARY), "num_key_value_heads": 1, "eos_token_id": EOS_TOKEN_ID}
    config = family(**shape | own)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    settings = SamplingSettings(max_tokens=14)
    prompts = [_prompt(index, length) for index, length in enumerate([2, 7, 8, 9, 30])]
    requests = [GenerationRequest(prompt, settings, seed=index) for index, prompt in enumerate(prompts)]
    async with playing(tmp_path) as engine:
        completions = await together(engine, requests)
    assert max(len(completion.token_ids) for completion in completions) > 8
    reference = Reference(tmp_path)
    for prompt, completion in zip(prompts, completions, strict=True):
        expected = reference.logprobs(None, prompt, completion.token_ids, settings)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
