"""An adapter merged into its base model: the same policy without PEFT, in the base model's numbers."""

from pathlib import Path

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.inference.tiny_model import build_adapter, build_tiny_model
from unstable_stream.algorithms.learners.lora import merge_adapter
from unstable_stream.errors import LearnerError
from unstable_stream.log.stores.adapter_format import CONFIG_FILE

TOKENS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_weight_is_rounded_once(tiny_model: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(tiny_model, dtype=dtype).save_pretrained(base)
    adapter = Path(build_adapter(tiny_model, tmp_path / "adapter", seed=1).path)
    merge_adapter(base, adapter, tmp_path / "merged")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert found.dtype == dtype
    exact = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter
    )
    with torch.no_grad():
        logits = exact(TOKENS).logits
    exact = exact.merge_and_unload()
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    expected = {name: tensor.to(dtype) for name, tensor in exact.state_dict().items()}
    assert weights.keys() <= expected.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)
    if dtype == torch.float32:
        with torch.no_grad():
            torch.testing.assert_close(found(TOKENS).logits, logits, rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_one_line(tiny_model: Path, tmp_path: Path) -> None:
    other = build_tiny_model(tmp_path / "other", hidden_size=64)
    adapter = Path(build_adapter(tiny_model, tmp_path / "adapter", seed=1).path)
    with pytest.raises(LearnerError, match=r"cannot be merged into .*other") as caught:
        merge_adapter(other, adapter, tmp_path / "merged")
    assert "\n" not in str(caught.value)
    (adapter / CONFIG_FILE).write_text("{")
    with pytest.raises(LearnerError, match="cannot be merged"):
        merge_adapter(tiny_model, adapter, tmp_path / "merged")
