"""Load the model that training begins with, as engines compute it, and weights into a policy; merge both.

Models that also take images or sound have encoders for these beside their language model. Text never reaches
those, so nothing there is trained or adapted.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from unstable_stream.errors import LearnerError
from unstable_stream.extensions.deferred_imports import deferring

with deferring({"scipy.optimize": ("linear_sum_assignment",)}):  # for losses of object detection
    import transformers.modeling_utils

_NOISE: Final = ("drop", "jitter")
"""Parts of the names that configurations of transformers have for what is random in training only."""


def load_base_model(model_name: str, dtype: torch.dtype) -> Any:  # a transformers model: it has no types
    """Return the causal language model with its dropout switched off.

    Raises:
        LearnerError: there is none of that name, or it computes other logits in training mode all the same.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(model_name)
        _switch_noise_off(config)
        with no_progress_bar():
            loads = language_model_class(config)
            model = loads.from_pretrained(model_name, config=config, dtype=dtype)
    except (OSError, ValueError) as error:
        raise LearnerError(
            f"base model {model_name!r} could not be loaded: {error}. Expected a Hugging Face directory or "
            "id of a causal language model"
        ) from error
    _check_same_in_training(model)
    return model


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


def copy_weights(
    own: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor], *, origin: str, expected: str
) -> None:
    """Copy saved tensors into a policy's parameters of the same names.

    Raises:
        LearnerError: names or shapes differ; says what ``origin`` does not fit and what was ``expected``.
    """
    wrong = sorted(
        name
        for name in own.keys() | weights.keys()
        if name not in own or name not in weights or own[name].shape != weights[name].shape
    )
    if wrong:
        raise LearnerError(
            f"{origin} does not fit this policy: {len(wrong)} tensors differ in name or shape, "
            f"first {wrong[0]}; expected {expected}"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def _switch_noise_off(config: Any) -> None:  # transformers publishes no types
    """Set the dropout and router jitter to zero in a model's configuration, and in those inside it."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            _switch_noise_off(value)
        elif isinstance(value, float) and any(word in name for word in _NOISE):
            setattr(config, name, 0.0)


def _check_same_in_training(model: Any) -> None:  # a transformers model
    """Raise :class:`LearnerError` if the base model computes something else in training mode."""
    tokens = torch.tensor([[1, 2, 3, 0]], device=model.device)
    logits = {}
    for training in (True, False):
        model.train(training)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits[training] = model(input_ids=tokens, use_cache=False).logits
    if not torch.allclose(logits[True], logits[False], rtol=1e-3, atol=1e-3):
        raise LearnerError(
            f"{type(model).__name__} computes other logits in training mode than in evaluation mode, so its "
            "samples could not be scored; remove the dropout or noise from its code"
        )


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
    """Silence the progress bars of transformers in the terminal or notebook."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def merge_adapter(model_path: Path | str, adapter: Path, target: Path) -> None:
    """Write the model that base model and adapter are together, in the base model's own numbers.

    Each weight is rounded once: PEFT adds the adapter's float32 product to it in place.

    Args:
        model_path: directory of the base model.
        adapter: directory of the adapter.
        target: directory for ``config.json``, the weights and ``generation_config.json``.

    Raises:
        LearnerError: one of the two cannot be loaded, or they do not fit.
        OSError: the model cannot be written.
    """
    import peft  # takes a moment, and training does not need it

    with no_progress_bar():
        try:
            # The configuration is that of the base model as it is, its dropout included: others may train on.
            config = transformers.AutoConfig.from_pretrained(model_path)
            base = language_model_class(config).from_pretrained(model_path, dtype="auto")
            merged = peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()
        except (OSError, ValueError, RuntimeError) as error:
            first = str(error).strip().partition("\n")[0]
            raise LearnerError(
                f"the adapter {adapter} cannot be merged into {model_path}: {first}; expected the base model "
                "that it was trained on"
            ) from error
        merged.save_pretrained(target)
