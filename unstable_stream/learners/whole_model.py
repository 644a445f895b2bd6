"""The policy when all parameters are trained: the base model itself, in float32."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from unstable_stream.learners.base_model import copy_weights, load_base_model

__all__ = ["build_whole_policy", "load_whole_weights", "model_config", "tokenizer_files", "whole_weights"]

_TOKENIZER_FILES: Final = ("*.json", "*.txt", "*.jinja", "*.model")
_OTHER_JSON: Final = ("config.json", "state.json")


def build_whole_policy(model_name: str, *, device: torch.device) -> Any:  # a transformers model
    """Load the base model in float32, since sums of small steps need its digits, with all parameters of its
    language model trainable; encoders of images or sound stay as they are, and are saved with it.
    """
    model = load_base_model(model_name, torch.float32).requires_grad_(False)
    for trained in (model.get_decoder(), model.get_output_embeddings()):
        trained.requires_grad_(True)
    return model.to(device)


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters on the CPU by name, tied ones once: what Hugging Face's format holds."""
    return {name: parameter.detach().cpu().contiguous() for name, parameter in model.named_parameters()}


def load_whole_weights(model: nn.Module, weights: Mapping[str, Tensor], *, origin: str) -> None:
    """Copy saved parameters into the model; raises :class:`LearnerError` if names or shapes differ."""
    own = dict(model.named_parameters())
    copy_weights(own, weights, origin=f"model {origin}", expected="a checkpoint of the same base model")


def model_config(model: Any) -> dict[str, Any]:  # a transformers model
    """Return the content of ``config.json``."""
    config: dict[str, Any] = json.loads(model.config.to_json_string())
    return config


def tokenizer_files(model_name: str) -> dict[str, bytes]:
    """Return the small files beside a model's weights, which make a checkpoint of it a model of its own."""
    return {
        path.name: path.read_bytes()
        for pattern in _TOKENIZER_FILES
        for path in sorted(Path(model_name).glob(pattern))
        if path.name not in _OTHER_JSON and not path.name.endswith(".index.json")
    }
