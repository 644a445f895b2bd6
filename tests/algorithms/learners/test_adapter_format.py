"""Adapters saved by PEFT with other fields than ours: applied, or refused by name, by learner and engines."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.algorithms.learners.conftest import MakeLearner
from tests.inference.tiny_model import build_adapter
from unstable_stream.errors import EngineError, LearnerError
from unstable_stream.inference.adapter_files import check_adapter_files
from unstable_stream.inference.engine import Adapter
from unstable_stream.log.stores import adapter_format
from unstable_stream.log.stores.adapter_format import CONFIG_FILE, refused_fields

pytestmark = pytest.mark.longer

CFG = {"lora_rank": 8, "lora_alpha": 16}
REFUSED: dict[str, Any] = {
    "peft_type": "ADALORA",
    "bias": "lora_only",
    "fan_in_fan_out": True,
    "use_dora": True,
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "target_parameters": ["experts"],
    "trainable_token_indices": [1],
    "layer_replication": [[0, 2]],
    "alora_invocation_tokens": [7],
    "init_lora_weights": "pissa",
    "a_field_of_tomorrow": {"rank": 3},
}


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Adapter:
    return build_adapter(tiny_model, tmp_path / "ckpt-000001", seed=1)


def change(adapter: Adapter, **fields: object) -> None:
    path = Path(adapter.path) / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_every_field_of_peft_is_applied_or_refused() -> None:
    known = adapter_format._UNDERSTOOD | adapter_format._NEUTRAL.keys() | {"init_lora_weights"}
    assert {field.name for field in dataclasses.fields(peft.LoraConfig)} <= known
    assert refused_fields(peft.LoraConfig(r=4, target_modules=["q_proj"]).to_dict()) == []


@pytest.mark.parametrize("field", sorted(REFUSED))
async def test_a_field_that_is_not_applied_is_refused_by_name(
    adapter: Adapter, make_learner: MakeLearner, field: str
) -> None:
    change(adapter, **{field: REFUSED[field]})
    says = rf"found: {field} = .*merge_and_unload"
    with pytest.raises(LearnerError, match=says):
        make_learner(lora_cfg=CFG, initial_lora_path=adapter.path)
    with pytest.raises(EngineError, match=says):
        check_adapter_files(adapter, {}, max_rank=8)


def test_ranks_by_layer_are_refused_where_one_rank_is_trained(
    adapter: Adapter, make_learner: MakeLearner
) -> None:
    change(adapter, rank_pattern={"q_proj": 4})
    with pytest.raises(LearnerError, match=r"has rank_pattern = \{'q_proj': 4\}"):
        make_learner(lora_cfg=CFG, initial_lora_path=adapter.path)
    check_adapter_files(adapter, {}, max_rank=8)


def test_rslora_and_alphas_by_layer_start_the_same_policy(
    adapter: Adapter, make_learner: MakeLearner, tiny_model: Path, tmp_path: Path
) -> None:
    """And its first checkpoint, which has neither field, is the same policy once more."""
    change(adapter, use_rslora=True, alpha_pattern={"layers.1.self_attn.q_proj": 3, "up_proj": 5})
    learner = make_learner(lora_cfg=CFG, initial_lora_path=adapter.path)
    tokens = torch.tensor([[5, 6, 7, 8, 9]])

    def logits(path: str | Path) -> torch.Tensor:
        base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        with torch.no_grad():
            found: torch.Tensor = peft.PeftModel.from_pretrained(base, path).eval()(tokens).logits
        return found

    with torch.no_grad():
        own = learner.policy.model.eval()(tokens).logits
    torch.testing.assert_close(own, logits(adapter.path), rtol=1e-4, atol=1e-4)
    plain = shutil.copytree(adapter.path, tmp_path / "plain")
    change(Adapter("plain", str(plain)), use_rslora=False, alpha_pattern={})
    assert (own - logits(plain)).abs().max() > 0.1
    torch.testing.assert_close(own, logits(learner.save().path), rtol=1e-4, atol=1e-4)
