"""vLLM loads what ``push`` writes: the adapter on its base model, and the merged model alone."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.api.test_push import train
from unstable_stream.inference.engine import Adapter, Completion, GenerationRequest, SamplingSettings
from unstable_stream.inference.vllm.engine import VllmEngine
from unstable_stream.tiny_player import tiny_player_path

pytestmark = [
    pytest.mark.slow,
    # Starting vLLM takes half a minute on two idle cores and a multiple of it on busy ones.
    pytest.mark.timeout(600),
    # Importing vLLM makes torch define its own classes with a decorator it has itself deprecated.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning:torch.jit"),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed: make vllm-env (with a CUDA GPU: [vllm])",
    ),
]

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same checkpoint as an adapter, and as a merged model."""
    root = tmp_path_factory.mktemp("pushed")
    run = train(root / "data", name="pushed", iterations=1)
    adapter, merged = run.push(root / "adapter"), run.push(root / "merged", merged=True)
    return Path(adapter.destination), Path(merged.destination)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Take back the variables that vLLM sets for its own processes."""
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)


async def play(model: Path, adapter: Adapter | None) -> Completion:
    engine = VllmEngine(
        str(model), max_parallel_seq=2, max_loras=1, lora_rank=16, dtype="float32", kv_cache_gb=0.1, seed=0
    )
    try:
        return await engine.generate(GenerationRequest(PROMPT, SamplingSettings(8), adapter))
    finally:
        await engine.close()


@pytest.mark.parametrize("form", ["adapter", "merged"])
async def test_vllm_plays_the_policy_that_was_pushed(pushed: tuple[Path, Path], form: str) -> None:
    adapter, merged = pushed
    if form == "adapter":
        found = await play(tiny_player_path(), Adapter("pushed", str(adapter)))
    else:
        found = await play(merged, None)
    answer = list(found.token_ids)
    model = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + answer])).logits[0, len(PROMPT) - 1 : -1]
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.logprobs), expected, rtol=5e-3, atol=5e-3)
