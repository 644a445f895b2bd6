"""vLLM with a real language model and LoRA adapters that come and go, held against the learner.

Each test plays what users of vLLM with LoRA have reported to go wrong without a word. The tokens are sampled,
as in a run, and each token's log-probability must be the learner's. One engine serves all tests: it takes
half a minute to start, and what one test leaves in its caches and slots is met by the next.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

from tests.inference.smollm2_adapters import LearnersView
from tests.inference.vllm_modules import NEEDS_VLLM, beside_vllm
from unstable_stream.errors import EngineError
from unstable_stream.inference.engine import Adapter, Completion, GenerationRequest, SamplingSettings
from unstable_stream.inference.tokenizer import FileTokenizer, load_tokenizer
from unstable_stream.inference.vllm.engine import VllmEngine

__all__ = ["beside_vllm"]

pytestmark = [
    pytest.mark.long,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    # Starting vLLM takes half a minute on two idle cores and a multiple of it on busy ones.
    pytest.mark.timeout(600),
    *NEEDS_VLLM,
]

MAX_LORAS = 2
MAX_PARALLEL = 6
CHUNK_TOKENS = 96
"""Prompt tokens computed in one step; longer prompts are computed in chunks."""
CACHE_GB = 0.1
"""2,300 tokens: fewer than the requests of a test need, so that cached prompts and running requests make room
for others."""
TOLERANCE = 5e-3
"""Absolute, natural log-probabilities in float32 from two implementations of the same model."""
EFFECT = 0.05
"""The least mean distance between two adapters' log-probabilities of the same tokens."""


@pytest.fixture(scope="module")
def learner(smollm2: Path) -> LearnersView:
    return LearnersView(smollm2)


@pytest.fixture(scope="module")
def adapters(learner: LearnersView, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    """Five adapters: two of all layers, one of the last layers only, one of a small rank, one more."""
    root = tmp_path_factory.mktemp("smollm2-adapters")
    return [
        learner.write(root / "ckpt-000001", seed=1),
        learner.write(root / "ckpt-000002", seed=2),
        learner.write(root / "ckpt-000003", seed=3, layers=range(18, 30)),
        learner.write(root / "ckpt-000004", seed=4, rank=4),
        learner.write(root / "ckpt-000005", seed=5),
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(
        str(smollm2),
        max_parallel_seq=MAX_PARALLEL,
        max_loras=MAX_LORAS,
        lora_rank=16,
        dtype="float32",
        kv_cache_gb=CACHE_GB,
        seed=0,
        extra_engine_args={"max_num_batched_tokens": CHUNK_TOKENS},
    )
    yield engine
    await engine.close()


@pytest.fixture
def cached(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of each finished request's prompt vLLM took from its cache."""
    found: list[int] = []
    generate = engine._vllm.llm.generate

    async def tapped(*args: object, **kwargs: object) -> AsyncIterator[object]:
        async for result in generate(*args, **kwargs):
            yield result
        found.append(result.num_cached_tokens)

    monkeypatch.setattr(engine._vllm.llm, "generate", tapped)
    return found


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> FileTokenizer:
    return load_tokenizer(str(smollm2))


def prompt(tokenizer: FileTokenizer, first_game: int, games: int) -> list[int]:
    """A chat prompt of 80 tokens and 20 for each game; ``first_game`` tells one from another early."""
    told = " ".join(
        f"Game {game}: X took {game % 9}, O took {(game + 4) % 9}, X took {(game * 5 + 7) % 9}."
        for game in range(first_game, first_game + games)
    )
    return tokenizer.encode_chat(
        f"{told} You play Tic Tac Toe on a board of nine squares, numbered from 0 to 8, row by row. "
        "The player who first has three marks in a row, a column or a diagonal wins. Your move, X."
    )


def sampled(token_ids: Sequence[int], adapter: Adapter | None, max_tokens: int) -> GenerationRequest:
    return GenerationRequest(token_ids, SamplingSettings(max_tokens=max_tokens), adapter)


def assert_learners(learner: LearnersView, request: GenerationRequest, completion: Completion) -> None:
    """The log-probabilities are those of the learner with the request's adapter."""
    expected = learner.logprobs(request.adapter, request.prompt_token_ids, completion.token_ids)
    assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(abs(one - other) for one, other in zip(first, second, strict=True)) / len(first)


async def test_the_context_is_what_the_cache_holds_if_that_is_less_than_the_models_own(
    engine: VllmEngine, tokenizer: FileTokenizer
) -> None:
    """With Qwen3-0.6B, whose context takes 4.5 GB, vLLM would not start without settings."""
    assert 2000 < engine.max_model_len < 2400 < (tokenizer.context_tokens or 0)
    with pytest.raises(EngineError, match=rf"the context {engine.max_model_len} \(max_model_len\)"):
        await engine.generate(sampled([100] * engine.max_model_len, None, 50))


async def test_each_adapter_is_told_from_the_base_model_and_from_another(
    engine: VllmEngine, adapters: list[Adapter], learner: LearnersView, tokenizer: FileTokenizer
) -> None:
    """Rollouts came from the base model without a word (verl #3821, #7495; vLLM #55193).

    What the other tests compare would not pass under a wrong adapter.
    """
    everyone = [None, *adapters]
    requests = [sampled(prompt(tokenizer, 10, 0), adapter, 16) for adapter in everyone]
    found = await asyncio.gather(*map(engine.generate, requests))
    for place, (request, completion) in enumerate(zip(requests, found, strict=True)):
        assert_learners(learner, request, completion)
        for wrong in {None, everyone[place - 1]} - {request.adapter}:
            others = learner.logprobs(wrong, request.prompt_token_ids, completion.token_ids)
            assert distance(completion.logprobs, others) > EFFECT


async def test_a_cached_prompt_is_used_for_its_adapter_alone(
    engine: VllmEngine,
    adapters: list[Adapter],
    learner: LearnersView,
    tokenizer: FileTokenizer,
    cached: list[int],
) -> None:
    """One adapter's cached prompt was taken for another's (vLLM #30931, #42125, #48352)."""
    shared = prompt(tokenizer, 70, 9)
    turns = [None, adapters[0], adapters[1]]
    requests = [sampled(shared, adapter, 8) for adapter in (*turns, *turns)]
    found = [await engine.generate(request) for request in requests]
    for request, completion in zip(requests, found, strict=True):
        assert_learners(learner, request, completion)
    # The chat template begins every prompt with the same few words.
    first, again = cached[: len(turns)], cached[len(turns) :]
    assert max(first) < CHUNK_TOKENS
    assert min(again) > len(shared) // 2


async def test_a_request_in_flight_keeps_its_adapter_while_others_come_and_go(
    engine: VllmEngine, adapters: list[Adapter], learner: LearnersView, tokenizer: FileTokenizer
) -> None:
    """A request in flight was decoded with the adapter that was loaded meanwhile (vLLM #47724).

    The slots and vLLM's cache of adapters are filled over and over; an adapter of few layers or of a small
    rank takes the slot that a larger one has left; each one that was thrown out comes back.
    """
    steady, *others = adapters
    games = iter(range(200, 1000))
    played: list[tuple[GenerationRequest, Completion]] = []

    async def play(adapter: Adapter, max_tokens: int) -> None:
        request = sampled(prompt(tokenizer, next(games), 0), adapter, max_tokens)
        played.append((request, await engine.generate(request)))

    async def keep_playing() -> None:
        while not done.is_set():
            await play(steady, 24)

    done = asyncio.Event()
    # Two that overlap: there is always one of them in flight.
    in_flight = [asyncio.create_task(keep_playing()) for _ in range(2)]
    for other in (*others, *others[:2]):
        await play(other, 4)
    done.set()
    await asyncio.gather(*in_flight)
    for request, completion in played:
        assert_learners(learner, request, completion)


async def test_an_adapter_that_changed_on_disk_is_not_loaded_again(
    engine: VllmEngine,
    adapters: list[Adapter],
    learner: LearnersView,
    tokenizer: FileTokenizer,
    tmp_path: Path,
) -> None:
    """Its prompts in the cache would be those of the old weights (vLLM #42125, #48352)."""
    mutable = learner.write(tmp_path / "ckpt-000010", seed=10)
    request = sampled(prompt(tokenizer, 400, 6), mutable, 6)
    assert_learners(learner, request, await engine.generate(request))
    shutil.rmtree(mutable.path)
    learner.write(Path(mutable.path), seed=11)
    for other in adapters:
        await engine.generate(sampled(prompt(tokenizer, 400, 0), other, 2))
    with pytest.raises(EngineError, match=r"'ckpt-000010' at .*has changed since it was first loaded"):
        await engine.generate(request)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        # A prefix that a multi-modal model of the same family has.
        (".layers.", ".language_model.layers.", r"adapts 'model\.language_model.*vLLM's model does not have"),
        # One module among many.
        ("layers.29.mlp.up_proj", "layers.30.mlp.up_proj", r"'model.layers.30.*\(1 such modules\)"),
        ("layers.29.mlp.up_proj", "layers.29.mlp.router", "refused by vLLM.*router"),
    ],
)
async def test_an_adapter_that_vllm_would_apply_in_part_is_refused(
    engine: VllmEngine,
    adapters: list[Adapter],
    learner: LearnersView,
    tokenizer: FileTokenizer,
    tmp_path: Path,
    old: str,
    new: str,
    message: str,
) -> None:
    """vLLM passes over modules that it does not have, and plays as the base model (vLLM #34186)."""
    foreign = learner.write(tmp_path / tmp_path.name, seed=20)
    file = Path(foreign.path) / "adapter_model.safetensors"
    save_file({name.replace(old, new): tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(EngineError, match=message):
        await engine.generate(sampled(prompt(tokenizer, 500, 0), foreign, 4))
    request = sampled(prompt(tokenizer, 500, 0), adapters[0], 4)
    assert_learners(learner, request, await engine.generate(request))


async def test_adapters_are_applied_to_a_batch_at_once(engine: VllmEngine) -> None:
    assert await engine._vllm.llm.collective_rpc("lora_products") == [["BatchedLoraCpu"]]
