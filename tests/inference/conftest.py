"""One tiny model and its adapters for all engine tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.inference.tiny_model import build_adapter, build_tiny_model
from unstable_stream.inference.engine import Adapter
from unstable_stream.inference.transformers.engine import TransformersEngine


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so; fail after two minutes."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def playing(model: Path, **options: Any) -> AsyncIterator[TransformersEngine]:
    """An engine of this model on one thread of the CPU, closed in the end."""
    engine = TransformersEngine(str(model), device="cpu", num_threads=1, **options)
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the tiny model and its tokenizer."""
    return build_tiny_model(tmp_path_factory.mktemp("tiny-model") / "model")


@pytest.fixture(scope="session")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    """Three different adapters of the tiny model."""
    root = tmp_path_factory.mktemp("adapters")
    return [build_adapter(tiny_model, root / f"ckpt-{seed:06d}", seed=seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="session")
def whole_models(tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    """Three different models of the tiny model's shape, as a learner of all parameters saves them."""
    root = tmp_path_factory.mktemp("whole-models")
    return [
        Adapter(f"whole-{seed:06d}", str(build_tiny_model(root / str(seed), seed=seed))) for seed in (1, 2, 3)
    ]


@pytest.fixture(params=["adapters", "whole models", "both"])
def checkpoints(
    request: pytest.FixtureRequest, adapters: list[Adapter], whole_models: list[Adapter]
) -> list[Adapter]:
    """Three checkpoints of the tiny model: of an adapter, of all parameters, or of either."""
    of_both = [adapters[0], whole_models[1], adapters[2]]
    return {"adapters": adapters, "whole models": whole_models, "both": of_both}[request.param]
