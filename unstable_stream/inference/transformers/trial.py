"""Build a model without its weights, and see whether engine and learner could compute it."""

import contextlib
from collections.abc import Sequence

import torch
import transformers

from unstable_stream.algorithms.learners.lora import language_model_class, linear_layers
from unstable_stream.errors import ConfigError
from unstable_stream.inference.adapter_files import refuse_unknown_targets
from unstable_stream.inference.transformers.model import ATTENTION, SUPPORTED, attention_shape


def try_model(model_path: str, *, plays_here: bool, trains: bool, targets: Sequence[str] | None) -> None:
    """Try a model on torch's device ``meta``; see :func:`unstable_stream.inference.base_model.check_model`.

    Raises:
        ConfigError: transformers cannot build it, or engine or learner could not compute it.
    """
    attention = {"attn_implementation": ATTENTION} if plays_here else {}
    try:
        config = transformers.AutoConfig.from_pretrained(model_path)
        loads = language_model_class(config)
        with torch.device("meta"):
            model = loads.from_config(config, dtype=torch.bfloat16, **attention)
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if isinstance(error, KeyError) and ATTENTION in reason:
            reason = f"the transformers engine cannot play its attention; {SUPPORTED}, or use the vLLM engine"
        raise ConfigError(f"model {model_path!r} cannot be used: {reason}") from error
    if plays_here:
        # A model that looks at numbers cannot be tried without: the engine will see.
        with contextlib.suppress(RuntimeError):
            attention_shape(model, model_path)
    if trains and (model.get_output_embeddings() is None or model.get_decoder() is model):
        raise ConfigError(
            f"{model_path}: {type(model).__name__} has no separate decoder and output head, so it cannot be "
            f"trained; {SUPPORTED}"
        )
    if targets is not None:
        refuse_unknown_targets(model_path, targets, linear_layers(model))
