"""The trained weights: an adapter on a frozen base model, or all parameters of the model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from unstable_stream.algorithms.learners.lora import (
    adapter_config,
    adapter_weights,
    build_policy,
    checkpoint_activations,
    copy_weights,
    load_adapter_directory,
    load_adapter_weights,
    load_base_model,
)
from unstable_stream.algorithms.learners.settings import LearnerSettings

_TOKENIZER_FILES: Final = ("*.json", "*.txt", "*.jinja", "*.model")
_OTHER_JSON: Final = ("config.json", "state.json")


class Policy:
    """A model in training mode, and its trained part as checkpoints hold it.

    Raises:
        LearnerError: the base model cannot be loaded or adapted.
    """

    def __init__(
        self, model_name: str, settings: LearnerSettings, device: torch.device, *, lower: bool
    ) -> None:
        """``lower``: a frozen base model is bfloat16."""
        self.model_name = model_name
        self._whole = settings.parameters == "all"
        self._lora = settings.lora_cfg
        if self._whole:
            self.model = build_whole_policy(model_name, device=device)
        else:
            dtype = torch.bfloat16 if lower else torch.float32
            self.model = build_policy(
                model_name, self._lora, device=device, base_dtype=dtype, seed=settings.seed
            )
        if settings.initial_lora_path is not None:
            load_adapter_directory(self.model, Path(settings.initial_lora_path), self._lora)
        # The base model's own dropout is off.
        random = self._lora.lora_dropout > 0 and not self._whole
        if settings.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": random})
        elif settings.activation_checkpointing:
            checkpoint_activations(self.model, random=random)
        self.model.train()

    @property
    def lora(self) -> dict[str, Any]:
        """The settings of the adapter, as checkpoints record them; empty if all parameters are trained."""
        return {} if self._whole else self._lora.to_dict()

    def weights(self) -> dict[str, Tensor]:
        """Return what is trained, on the CPU, as the weight file names it."""
        return whole_weights(self.model) if self._whole else adapter_weights(self.model)

    def load(self, weights: Mapping[str, Tensor], *, origin: str) -> None:
        """Copy saved weights into the model; raises :class:`LearnerError` if names or shapes differ."""
        load = _load_whole if self._whole else load_adapter_weights
        load(self.model, weights, origin=origin)

    def share_base(self, other: "Policy") -> None:
        """Compute with the base model of another policy, made with the same one; let go of the own copy."""
        theirs = dict(other.model.named_parameters())
        for name, parameter in self.model.named_parameters():
            if not parameter.requires_grad:
                parameter.data = theirs[name].data

    def files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the configuration that says how to load the weights, and other files to go with them."""
        if self._whole:
            return _config_of(self.model), tokenizer_files(self.model_name)
        return adapter_config(self.model, self.model_name, self._lora), {}


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


def _load_whole(model: nn.Module, weights: Mapping[str, Tensor], *, origin: str) -> None:
    """Copy saved parameters into the model; raises :class:`LearnerError` if names or shapes differ."""
    own = dict(model.named_parameters())
    copy_weights(own, weights, origin=f"model {origin}", expected="a checkpoint of the same base model")


def _config_of(model: Any) -> dict[str, Any]:  # a transformers model
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
