"""Of a model that also takes images only the language model is trained, and all compute its adapter alike."""

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers

from tests.algorithms.test_scoring import SHAPE
from tests.inference.conftest import playing
from unstable_stream.algorithms.learners.lora import (
    LoraSettings,
    adapter_config,
    adapter_weights,
    build_policy,
    language_model_class,
)
from unstable_stream.algorithms.learners.policy import build_whole_policy, whole_weights
from unstable_stream.errors import LearnerError
from unstable_stream.inference.engine import Adapter

TEXT = SHAPE | {"vocab_size": 40, "max_position_embeddings": 64}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
CPU = torch.device("cpu")


def gemma3() -> Any:
    return transformers.Gemma3Config(
        text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4, image_token_index=5
    )


def mistral3() -> Any:
    return transformers.Mistral3Config(
        text_config=TEXT | {"model_type": "mistral"},
        vision_config=VISION | {"model_type": "pixtral", "head_dim": 8},
        image_token_index=5,
    )


def gpt2() -> Any:
    return transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=64)


def write(path: Path, config: Any) -> str:
    torch.manual_seed(0)
    model = language_model_class(config).from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.2)
    model.save_pretrained(path)
    return str(path)


def settings(*targets: str, last_layers: int | None = None) -> LoraSettings:
    named = targets or LoraSettings().target_modules
    return LoraSettings(lora_rank=4, lora_alpha=8, target_modules=named, last_layers=last_layers)


@pytest.mark.parametrize("config", [gemma3, mistral3])
@pytest.mark.parametrize("last_layers", [None, 1])
def test_only_the_language_model_gets_the_adapter(
    tmp_path: Path, config: Any, last_layers: int | None
) -> None:
    path = write(tmp_path / "model", config())
    lora = settings(last_layers=last_layers)
    policy = build_policy(path, lora, device=CPU, base_dtype=torch.float32, seed=1)
    weights = adapter_weights(policy)
    assert len(weights) == (last_layers or 2) * 7 * 2
    assert all(".language_model.layers." in name for name in weights)
    assert all(
        ".language_model.layers." in name for name in adapter_config(policy, path, lora)["target_modules"]
    )


def test_all_parameters_are_those_of_the_language_model(tmp_path: Path) -> None:
    policy = build_whole_policy(write(tmp_path / "model", gemma3()), device=CPU)
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("language_model" in name or name == "lm_head.weight" for name in trained)
    assert any("vision_tower" in name for name in whole_weights(policy)), "saved, so that it stays a model"


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning:peft")
@pytest.mark.parametrize(
    ("config", "targets"), [(gemma3, ()), (mistral3, ()), (gpt2, ("c_attn", "c_fc", "mlp.c_proj"))]
)
async def test_engine_learner_and_peft_compute_the_adapter_alike(
    tmp_path: Path, config: Any, targets: tuple[str, ...]
) -> None:
    path = write(tmp_path / "model", config())
    lora = settings(*targets)
    policy = build_policy(path, lora, device=CPU, base_dtype=torch.float32, seed=1).eval()
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    safetensors.torch.save_file(adapter_weights(policy), adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps(adapter_config(policy, path, lora)))
    prompt, completion = [7, 8, 9], [10, 11, 12, 13]
    tokens = torch.tensor([prompt + completion])

    def scores(model: Any) -> list[float]:
        with torch.no_grad():
            logprobs = model(input_ids=tokens, use_cache=False).logits.log_softmax(-1)[0, 2:-1]
        return [float(row[token]) for row, token in zip(logprobs, completion, strict=True)]

    async with playing(Path(path), dtype="float32") as engine:
        (base,) = await engine.score([(prompt, completion)])
        (found,) = await engine.score([(prompt, completion)], Adapter("a", str(adapter)))
    assert found == pytest.approx(scores(policy), abs=1e-4)
    assert found != pytest.approx(base, abs=1e-2)
    own = language_model_class(config()).from_pretrained(path, dtype=torch.float32)
    assert base == pytest.approx(scores(own), abs=1e-4)
    assert found == pytest.approx(scores(peft.PeftModel.from_pretrained(own, adapter).eval()), abs=1e-4)


def test_layers_that_are_not_there_are_answered_with_those_that_are(tmp_path: Path) -> None:
    path = write(tmp_path / "model", gpt2())
    with pytest.raises(LearnerError, match=r"no linear layers q_proj: set lora\.target_modules to .*c_attn"):
        build_policy(path, settings("c_attn", "q_proj"), device=CPU, base_dtype=torch.float32, seed=1)
