"""vLLM with the tiny player: it plays what ``push`` writes, and its policy is read as by the other engine."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.api.conftest import train
from tests.inference.reference import Reference
from tests.inference.tiny_model import build_adapter
from tests.inference.vllm_modules import NEEDS_VLLM, beside_vllm
from unstable_stream.games.templates import get_template
from unstable_stream.inference.engine import Adapter, GenerationRequest, SamplingSettings
from unstable_stream.inference.exploitability import PolicyReader
from unstable_stream.inference.tiny_player import tiny_player_path
from unstable_stream.inference.tokenizer import load_tokenizer
from unstable_stream.inference.transformers.engine import TransformersEngine
from unstable_stream.inference.vllm.engine import VllmEngine

__all__ = ["beside_vllm"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.asyncio(loop_scope="module"),
    # Starting vLLM takes half a minute on two idle cores and a multiple of it on busy ones.
    pytest.mark.timeout(600),
    *NEEDS_VLLM,
]

PROMPT = [5, 6, 7, 8, 9]
TOLERANCE = 2e-3
"""Absolute, of probabilities in float32 from two implementations of the same model."""


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same checkpoint as an adapter, and as a merged model."""
    root = tmp_path_factory.mktemp("pushed")
    run = train(root / "data", name="pushed", iterations=1)
    adapter, merged = run.push(root / "adapter"), run.push(root / "merged", merged=True)
    return Path(adapter.destination), Path(merged.destination)


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny player. One of its ends stands in the file that vLLM by itself does not ask."""
    model = Path(shutil.copytree(tiny_player_path(), tmp_path_factory.mktemp("player") / "model"))
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": sorted(ends(model))}))
    return model


def ends(model: Path) -> set[int]:
    tokenizer = load_tokenizer(model)
    return {*tokenizer.eos_token_ids, tokenizer.encode("[4]")[0]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(player: Path) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(
        str(player), max_loras=1, max_parallel_seq=16, lora_rank=16, dtype="float32", kv_cache_gb=0.25, seed=0
    )
    yield engine
    await engine.close()


async def test_a_policy_is_read_as_by_the_other_engine(
    engine: VllmEngine, player: Path, tmp_path: Path
) -> None:
    """At every information state of Kuhn poker: of the tiny player, and of an adapter of it."""
    adapter = build_adapter(player, tmp_path / "adapter", seed=1)
    reader = PolicyReader("openspiel:kuhn_poker", load_tokenizer(player), get_template("kuhn-board"))
    other = TransformersEngine(str(player), device="cpu", dtype="float32", num_threads=1, max_loras=1)
    try:
        for which in (None, adapter):
            found, expected = await reader.read(engine, which), await reader.read(other, which)
            for here, there in zip(found, expected, strict=True):
                assert here.illegal_mass == pytest.approx(there.illegal_mass, abs=TOLERANCE)
                assert here.probabilities == pytest.approx(there.probabilities, abs=TOLERANCE)
            nash_conv = (await reader.judge(expected)).nash_conv
            assert (await reader.judge(found)).nash_conv == pytest.approx(nash_conv, abs=4 * TOLERANCE)
        asked = [GenerationRequest([5], SamplingSettings(200, temperature=2.0), seed=n) for n in range(16)]
        for each in (engine, other):
            answers = await asyncio.gather(*map(each.generate, asked))
            stops = {answer.token_ids[-1] for answer in answers if answer.finish_reason == "stop"}
            assert stops == ends(player)
            assert not any(stops.intersection(answer.token_ids[:-1]) for answer in answers)
    finally:
        await other.close()


async def test_vllm_plays_the_policy_that_was_pushed(engine: VllmEngine, pushed: tuple[Path, Path]) -> None:
    """With the probabilities of the merged model."""
    adapter, merged = pushed
    request = GenerationRequest(PROMPT, SamplingSettings(8), Adapter("pushed", str(adapter)))
    found = await engine.generate(request)
    expected = Reference(merged).logprobs(None, PROMPT, found.token_ids)
    assert found.logprobs == pytest.approx(expected, rel=5e-3, abs=5e-3)
