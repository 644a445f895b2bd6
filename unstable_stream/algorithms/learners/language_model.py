"""The language model within a model of transformers: the part that text goes through.

Models that also take images or sound have encoders for these beside it. Text never reaches those, so nothing
there is trained or adapted.
"""

from collections.abc import Sequence
from typing import Any

import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D


def language_model_class(config: Any) -> Any:  # transformers publishes no types
    """Return the class that loads a model of this configuration as one that writes text.

    Raises:
        ValueError: transformers knows none.
    """
    for mapping, loads in (
        (transformers.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.AutoModelForCausalLM),
        (transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, transformers.AutoModelForImageTextToText),
    ):
        if type(config) in mapping and not getattr(config, "is_encoder_decoder", False):
            return loads
    raise ValueError(f"a model of the type {config.model_type!r} does not write text token by token")


def linear_layers(model: Any, *, outside: bool = False) -> list[str]:  # a transformers model
    """Return the names of the linear layers of the language model, without the output head; or of those
    ``outside`` of it, which text does not reach.
    """
    within = set(model.get_decoder().modules())
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module is not model.get_output_embeddings()
        and (module in within) is not outside
    ]


def layers_named(layers: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Return the layers that the last parts of their names stand for, as PEFT has it."""
    return [name for name in layers if any(f".{name}".endswith(f".{target}") for target in targets)]
