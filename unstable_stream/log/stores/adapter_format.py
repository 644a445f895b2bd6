"""The configuration of a LoRA adapter in PEFT's file format: what is honoured, and what is refused by name.

``adapter_config.json`` has the fields of PEFT's ``LoraConfig``. Whoever reads one, learner or engine, asks
here. A field that changes what the adapter computes is either applied or an error: an adapter that is half
understood plays and trains as another policy, without a word.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

CONFIG_FILE: Final = "adapter_config.json"
WEIGHTS_FILE: Final = "adapter_model.safetensors"
MODEL_WEIGHTS_FILE: Final = "model.safetensors"
"""The weights of a whole model, in place of an adapter's, if all parameters are trained."""
REMEDY: Final = (
    "train a plain LoRA of linear layers (bias none, no DoRA, no modules_to_save), or merge this one into "
    "its base model with PEFT's merge_and_unload and take that as the base model"
)
"""The way out for an adapter with a refused field."""

_UNDERSTOOD: Final = frozenset(
    {
        # Applied.
        *("r", "rank_pattern", "lora_alpha", "alpha_pattern", "use_rslora"),
        # They choose the layers that are adapted: the names of the tensors say the same.
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
        # Without effect on what is computed.
        *(
            "auto_mapping",
            "base_model_name_or_path",
            "inference_mode",
            "peft_version",
            "revision",
            "task_type",
        ),
        # They act in training only, or choose the first values of the weights.
        *("lora_dropout", "runtime_config", "velora_config", "eva_config", "corda_config", "lora_ga_config"),
        *("loftq_config", "qalora_group_size", "megatron_core"),
    }
)

_NEUTRAL: Final[Mapping[str, Any]] = {
    "peft_type": "LORA",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "lora_bias": False,
    "modules_to_save": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "layer_replication": None,
    "alora_invocation_tokens": None,
    "use_qalora": False,
    "use_bdlora": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
    "megatron_config": None,
    "ensure_weight_tying": False,
}
"""Fields that must have this value, or an empty one: anything else computes more than B A x."""

_PLAIN_STARTS: Final = ("gaussian", "eva", "orthogonal", "mica", "lora_ga")
"""Values of ``init_lora_weights`` that leave the base model as it is."""


def refused_fields(config: Mapping[str, Any]) -> list[str]:
    """Return the fields that say more than a plain LoRA of linear layers, as ``name = value``.

    A field that is not known here, as a newer PEFT may write, is refused unless it is empty.
    """
    found = []
    for name, value in config.items():
        if name == "init_lora_weights":
            # PiSSA, OLoRA, CorDA and LoftQ take their share out of the base model's weights.
            refused = isinstance(value, str) and value.lower() not in _PLAIN_STARTS
        else:
            refused = name not in _UNDERSTOOD and bool(value) and value != _NEUTRAL.get(name)
        if refused:
            found.append(f"{name} = {value!r}")
    return sorted(found)


def adapter_scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Return PEFT's factor for B A x in a module: alpha / r, or alpha / sqrt(r) for rsLoRA.

    rsLoRA: Kalajdzievski, "A Rank Stabilization Scaling Factor", arXiv:2312.03732.

    Args:
        config: the content of ``adapter_config.json``.
        module: the module's name in the base model.
        rank: the rank of its tensors.
    """
    alpha = float(config["lora_alpha"])
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def weights_file(checkpoint: Path) -> Path:
    """Return a checkpoint's weight file: a whole model's if there is one, else an adapter's."""
    whole = checkpoint / MODEL_WEIGHTS_FILE
    return whole if whole.is_file() else checkpoint / WEIGHTS_FILE
