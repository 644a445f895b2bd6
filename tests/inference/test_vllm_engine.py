"""The vLLM engine, run for real on a tiny model and held against transformers and PEFT."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.algorithms.learners.conftest import MakeLearner, make_learner
from tests.algorithms.learners.test_adapter_proof import check_all, trained
from tests.inference.conftest import until
from tests.inference.reference import Reference
from tests.inference.test_exploitability import REFUSED
from tests.inference.tiny_model import EOS_TOKEN_ID, build_adapter
from tests.inference.vllm_modules import NEEDS_VLLM, beside_vllm
from unstable_stream.errors import EngineError
from unstable_stream.inference.engine import (
    Adapter,
    Completion,
    GenerationRequest,
    SamplingSettings,
    ScoresCompletions,
)
from unstable_stream.inference.vllm.engine import VllmEngine

__all__ = ["beside_vllm", "make_learner"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    # Starting vLLM takes half a minute on two idle cores and a multiple of it on busy ones.
    pytest.mark.timeout(400),
    *NEEDS_VLLM,
]

MAX_MODEL_LEN = 256
MAX_LORAS = 2
MAX_PARALLEL = 16
CHUNK_TOKENS = 32
"""Prompt tokens computed in one step: longer prompts are computed in chunks, as vLLM does with long ones."""
TOLERANCE = 2e-3
"""Absolute, natural log-probabilities in float32 from two implementations of the same model."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tiny_model: Path) -> AsyncIterator[VllmEngine]:
    arguments = {"max_num_batched_tokens": CHUNK_TOKENS}
    engine = build(tiny_model, max_loras=MAX_LORAS, extra_engine_args=arguments)
    yield engine
    await engine.close()


def build(model: Path, *, max_loras: int, extra_engine_args: dict[str, Any]) -> VllmEngine:
    return VllmEngine(
        str(model),
        max_parallel_seq=MAX_PARALLEL,
        max_model_len=MAX_MODEL_LEN,
        max_loras=max_loras,
        lora_rank=8,
        dtype="float32",
        kv_cache_gb=0.25,
        seed=0,
        extra_engine_args=extra_engine_args,
    )


@pytest.fixture(scope="module")
def reference(tiny_model: Path) -> Reference:
    return Reference(tiny_model)


def prompt(index: int) -> list[int]:
    """A prompt of 3 to 20 tokens, different for every index."""
    return [3, *((5 + (index * 7 + position * position) % 30) for position in range(2 + index % 18))]


def greedy(index: int, adapter: Adapter | None = None, max_tokens: int = 12) -> GenerationRequest:
    return GenerationRequest(prompt(index), SamplingSettings(max_tokens=max_tokens, temperature=0), adapter)


def assert_same(found: Completion, expected: Completion) -> None:
    assert found.token_ids == expected.token_ids
    assert found.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)
    assert found.finish_reason == expected.finish_reason


# -- the numbers ----------------------------------------------------------------------------------


async def test_concurrent_greedy_requests_equal_transformers_and_peft(
    engine: VllmEngine, adapters: list[Adapter], reference: Reference
) -> None:
    # Base and three adapters through two slots.
    plan = [(index, [None, *adapters][index % 4]) for index in range(48)]
    found = await asyncio.gather(*(engine.generate(greedy(index, adapter)) for index, adapter in plan))
    for (index, adapter), completion in zip(plan, found, strict=True):
        assert_same(completion, reference.greedy(adapter, prompt(index), 12))


async def test_given_completions_are_scored_as_the_model_would_say_them(
    engine: VllmEngine, adapters: list[Adapter], reference: Reference
) -> None:
    assert isinstance(engine, ScoresCompletions)
    # Many completions after one prompt, some of them the beginning of others.
    sequences = [
        (prompt(index), [5 + token, *more]) for index in (0, 7) for token in range(9) for more in ([], [9, 6])
    ]
    for which in (None, adapters[0]):
        scores = await engine.score(sequences, which)
        for (asked, completion), score in zip(sequences, scores, strict=True):
            assert score == pytest.approx(reference.logprobs(which, asked, completion), abs=TOLERANCE)
    assert await engine.score([]) == []
    for wrong, says in REFUSED:
        with pytest.raises(EngineError, match=says):
            await engine.score(wrong)


@pytest.mark.parametrize("with_adapter", [False, True])
async def test_sampled_logprobs_are_those_of_the_distribution_sampled_from(
    engine: VllmEngine, adapters: list[Adapter], reference: Reference, with_adapter: bool
) -> None:
    adapter = adapters[0] if with_adapter else None
    sampling = SamplingSettings(max_tokens=16, temperature=0.7, top_p=0.9)
    requests = [GenerationRequest(prompt(index), sampling, adapter, seed=index) for index in range(12)]
    # Greedy requests in the same batch have log-probabilities of their own.
    batch = await asyncio.gather(*map(engine.generate, [*requests, *(greedy(index) for index in range(4))]))
    far_from_raw = 0
    for request, completion in zip(requests, batch, strict=False):
        asked = (adapter, request.prompt_token_ids, completion.token_ids)
        assert completion.logprobs == pytest.approx(reference.logprobs(*asked, sampling), abs=TOLERANCE)
        raw = zip(completion.logprobs, reference.logprobs(*asked), strict=True)
        far_from_raw += sum(abs(logprob - of_raw) > 0.1 for logprob, of_raw in raw)
    # Raw log-probabilities, vLLM's default, would not have passed.
    assert far_from_raw > 50
    for index, completion in enumerate(batch[len(requests) :]):
        assert_same(completion, reference.greedy(None, prompt(index), 12))


async def test_long_prompts_with_seeds_go_through_in_chunks(
    engine: VllmEngine, adapters: list[Adapter], reference: Reference
) -> None:
    """vLLM 0.32 on a CPU dies of a seeded request whose prompt is computed in several chunks."""
    long = [prompt(index) * 6 + prompt(index + 1) * 5 for index in range(17, 17 + 2 * MAX_PARALLEL)]
    chosen = [None, *adapters]
    requests = [
        GenerationRequest(tokens, SamplingSettings(max_tokens=8), chosen[index % len(chosen)], seed=index)
        for index, tokens in enumerate(long)
    ]
    assert max(map(len, long)) > 3 * CHUNK_TOKENS
    for request, completion in zip(
        requests, await asyncio.gather(*map(engine.generate, requests)), strict=True
    ):
        expected = reference.logprobs(request.adapter, request.prompt_token_ids, completion.token_ids)
        assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)


async def test_the_same_request_is_sampled_anew_each_time(engine: VllmEngine) -> None:
    request = GenerationRequest(prompt(2), SamplingSettings(max_tokens=20), seed=7)
    first, second = await asyncio.gather(engine.generate(request), engine.generate(request))
    assert first.token_ids != second.token_ids


# -- where completions end ------------------------------------------------------------------------


async def test_stop_and_end_tokens_end_the_completion_and_are_kept(engine: VllmEngine) -> None:
    free = await engine.generate(greedy(1))
    stop = free.token_ids[4]
    stopped = await engine.generate(
        GenerationRequest(prompt(1), SamplingSettings(max_tokens=12, temperature=0, stop_token_ids=(stop,)))
    )
    cut = free.token_ids.index(stop) + 1
    assert stopped.token_ids == free.token_ids[:cut]
    assert len(stopped.logprobs) == cut
    assert stopped.finish_reason == "stop"
    # With 37 tokens at temperature 2 the model's end token comes soon.
    sampling = SamplingSettings(max_tokens=200, temperature=2.0)
    ended = await engine.generate(GenerationRequest(prompt(1), sampling, seed=0))
    assert ended.finish_reason == "stop"
    assert ended.token_ids.index(EOS_TOKEN_ID) == len(ended.token_ids) - 1


async def test_a_completion_ends_where_the_context_is_full(engine: VllmEngine) -> None:
    assert engine.max_model_len == MAX_MODEL_LEN
    long = [5 + index % 30 for index in range(MAX_MODEL_LEN - 6)]
    sampling = SamplingSettings(max_tokens=50, temperature=0)
    completion = await engine.generate(GenerationRequest(long, sampling))
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 6


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest([]), "prompt is empty"),
        (GenerationRequest([3], SamplingSettings(temperature=2.5)), "vLLM refused .*temperature"),
    ],
)
async def test_an_impossible_request_is_refused(
    engine: VllmEngine, request_: GenerationRequest, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        await engine.generate(request_)


# -- adapters come and go -------------------------------------------------------------------------


async def test_more_adapters_than_slots_take_turns_and_memory_stays_bounded(
    engine: VllmEngine, adapters: list[Adapter], tiny_model: Path, tmp_path: Path, reference: Reference
) -> None:
    many = [
        *adapters,
        *(build_adapter(tiny_model, tmp_path / f"ckpt-{seed:06d}", seed) for seed in (20, 21, 22)),
    ]
    before = engine.stats()
    tasks = [asyncio.create_task(engine.generate(greedy(index, many[index % 6]))) for index in range(60)]
    await until(lambda: engine.stats().queued > 0)
    found = await asyncio.gather(*tasks)
    after = engine.stats()
    for index, completion in enumerate(found):
        assert_same(completion, reference.greedy(many[index % 6], prompt(index), 12))
    # vLLM's own count.
    assert len(await engine._vllm.llm.list_loras()) == MAX_LORAS
    assert after.completions - before.completions == 60
    tokens = sum(len(completion.token_ids) for completion in found)
    assert after.completion_tokens - before.completion_tokens == tokens
    assert 0 < after.tokens_per_s <= after.completion_tokens / 5
    assert (after.queued, after.running) == (0, 0)


# -- the end of requests and engines --------------------------------------------------------------


async def test_cancelling_the_caller_aborts_the_request_in_vllm(
    engine: VllmEngine, adapters: list[Adapter]
) -> None:
    requests = [greedy(index, adapters[index % 3], 230) for index in range(40)]
    tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
    await until(lambda: engine._vllm.llm.get_num_unfinished_requests() >= 16)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    # A few may have ended before.
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) >= 16
    assert engine._vllm.llm.get_num_unfinished_requests() == 0
    stats = engine.stats()
    assert (stats.queued, stats.running) == (0, 0)
    assert len((await engine.generate(greedy(0, adapters[2]))).token_ids) == 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second(tiny_model: Path) -> AsyncIterator[VllmEngine]:
    """Another engine in the same process. Probes are longer than a chunk, and prompts are cached."""
    arguments = {"max_num_batched_tokens": 16, "enable_prefix_caching": True}
    engine = build(tiny_model, max_loras=1, extra_engine_args=arguments)
    yield engine
    await engine.close()


async def test_vllm_plays_proven_adapters_only(
    second: VllmEngine, make_learner: MakeLearner, tmp_path: Path
) -> None:
    proven = [trained(make_learner, seed, tmp_path / str(seed))[1] for seed in (11, 12)]
    await check_all(second, proven, tmp_path)


async def test_a_second_engine_in_the_same_process_dies_alone(
    engine: VllmEngine, second: VllmEngine, adapters: list[Adapter]
) -> None:
    expected = await engine.generate(greedy(8, adapters[1]))
    assert (await second.generate(greedy(8, adapters[1]))).token_ids == expected.token_ids
    requests = [greedy(index, adapters[1], 230) for index in range(40)]
    tasks = [asyncio.create_task(second.generate(request)) for request in requests]
    await until(lambda: second._vllm.llm.get_num_unfinished_requests() >= 16)
    (process,) = second._vllm.llm.engine_core.resources.engine_manager.processes
    process.kill()
    async with asyncio.timeout(120):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    # Those in vLLM as well as those that still waited for a slot; a few may have ended before.
    failed = [result for result in results if not isinstance(result, Completion)]
    assert len(failed) > 16
    assert all(isinstance(result, EngineError) and "has died" in str(result) for result in failed)
    with pytest.raises(EngineError, match="has died"):
        await second.generate(greedy(0))
    await second.close()
    await second.close()
    assert not process.is_alive()
    assert await engine.generate(greedy(8, adapters[1])) == expected
    assert all(map(math.isfinite, expected.logprobs))
