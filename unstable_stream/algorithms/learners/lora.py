"""The policy: a frozen base model with a trainable LoRA adapter (Hu et al., arXiv:2106.09685).

The model is loaded as engines compute it, and an adapter can be merged into it. Models that also take images
or sound have encoders for these beside their language model. Text never reaches those, so nothing there is
trained or adapted.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import safetensors
import safetensors.torch
import torch
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging as transformers_logging

from unstable_stream.algorithms.learners.adapted_linear import fuse_adapters
from unstable_stream.algorithms.settings import LoraSettings as LoraSettings
from unstable_stream.errors import LearnerError
from unstable_stream.extensions.deferred_imports import deferring
from unstable_stream.log.stores.adapter_format import (
    CONFIG_FILE,
    REMEDY,
    WEIGHTS_FILE,
    adapter_scale,
    refused_fields,
)

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


_PREFIX: Final = "base_model.model."
"""Before the module's name in PEFT's file format."""


def build_policy(
    model_name: str, settings: LoraSettings, *, device: torch.device, base_dtype: torch.dtype, seed: int
) -> Any:  # a transformers model, which publishes no types
    """Load the base model, freeze it and add a fresh adapter that changes nothing yet (B is zero).

    Returns the Hugging Face model itself with adapter layers in it: PEFT's wrapper would only cost time. The
    adapter is float32 for every base model, and only ``seed`` decides its first values. Of the dropout only
    the adapter's own acts in training: with the base model's the learner would score tokens under another
    policy than the engine sampled them from.
    """
    import peft  # not for full fine-tuning

    model = load_base_model(model_name, base_dtype).requires_grad_(False)
    targets = _targets(model, model_name, settings)
    lora = peft.LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        use_rslora=settings.use_rslora,
        target_modules=targets,
        task_type="CAUSAL_LM",
        bias="none",
        fan_in_fan_out=all(isinstance(model.get_submodule(name), Conv1D) for name in targets),
        base_model_name_or_path=model_name,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            peft.inject_adapter_in_model(lora, model)
        except ValueError as error:
            raise LearnerError(
                f"LoRA does not fit {model_name!r}: {error}. Set lora_cfg.target_modules to its projections"
            ) from error
    for parameter in _adapter_parameters(model).values():
        parameter.data = parameter.data.float()
    fuse_adapters(model)
    return model.to(device)


def _targets(model: Any, model_name: str, settings: LoraSettings) -> list[str]:  # a transformers model
    """Return the names of the layers that are adapted, all of the language model."""
    there = linear_layers(model)
    found = {target: layers_named(there, [target]) for target in settings.target_modules}
    if missing := [target for target, names in found.items() if not names]:
        known = sorted({name.rpartition(".")[2] for name in there})
        raise LearnerError(
            f"LoRA does not fit {model_name!r}, which has no linear layers {', '.join(missing)}: set "
            f"lora.target_modules to some of {', '.join(known)}"
        )
    numbers = _layers(model, settings)
    return sorted(
        {
            name
            for names in found.values()
            for name in names
            if numbers is None or _layer_number(name) in numbers
        }
    )


def _layer_number(name: str) -> int:
    return next((int(part) for part in name.split(".") if part.isdecimal()), -1)


def _layers(model: Any, settings: LoraSettings) -> list[int] | None:  # a transformers model
    """Return the numbers of the adapted decoder layers; ``None``: all."""
    if settings.last_layers is None:
        return None
    number: int = model.config.get_text_config().num_hidden_layers
    if settings.last_layers > number:
        raise LearnerError(
            f"lora_cfg.last_layers is {settings.last_layers}, but the base model has {number} decoder layers"
        )
    return list(range(number - settings.last_layers, number))


def adapter_config(model: Any, model_name: str, settings: LoraSettings) -> dict[str, Any]:
    """Return the content of ``adapter_config.json`` that PEFT and vLLM read."""
    targets = sorted(settings.target_modules)
    if layers_named(linear_layers(model, outside=True), targets):
        # PEFT would adapt the encoders too, by the same names.
        targets = sorted({name.partition(".lora_")[0] for name in _adapter_parameters(model)})
    return {
        "base_model_name_or_path": model_name,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": settings.lora_alpha,
        "layers_to_transform": _layers(model, settings),
        "lora_dropout": settings.lora_dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": settings.lora_rank,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": settings.use_rslora,
    }


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the adapter's tensors under the names of PEFT's file format, on the CPU."""
    return {
        _file_name(name): parameter.detach().cpu().contiguous()
        for name, parameter in _adapter_parameters(model).items()
    }


def load_adapter_weights(model: nn.Module, weights: Mapping[str, Tensor], *, origin: str) -> None:
    """Copy an adapter's tensors into the model; raises :class:`LearnerError` if names or shapes differ."""
    own = {_file_name(name): parameter for name, parameter in _adapter_parameters(model).items()}
    copy_weights(
        own,
        weights,
        origin=f"adapter {origin}",
        expected="the same base model, lora_rank, target_modules and last_layers",
    )


def load_adapter_directory(model: nn.Module, directory: Path, settings: LoraSettings) -> None:
    """Load an adapter from disk as the policy that it is, with rsLoRA and ``alpha_pattern``.

    Raises :class:`LearnerError`: it does not fit ``settings`` and model, or is no plain LoRA.
    """
    try:
        found = json.loads((directory / CONFIG_FILE).read_bytes())
        weights = safetensors.torch.load_file(directory / WEIGHTS_FILE)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise LearnerError(f"no readable adapter in {directory}: {error}. Check initial_lora_path") from error
    if refused := refused_fields(found):
        raise LearnerError(
            f"initial_lora_path {directory} is no plain LoRA adapter (found: {', '.join(refused)}); {REMEDY}"
        )
    if found.get("rank_pattern"):
        raise LearnerError(
            f"initial_lora_path {directory} has rank_pattern = {found['rank_pattern']!r}; the learner gives "
            "every layer the same rank: start from an adapter of one rank"
        )
    pair = (found.get("r"), found.get("lora_alpha"))
    if pair != (settings.lora_rank, settings.lora_alpha):
        raise LearnerError(
            f"adapter {directory} has rank and alpha {pair}, lora_cfg has "
            f"{(settings.lora_rank, settings.lora_alpha)}. Set lora_cfg to the adapter's"
        )
    for name, tensor in weights.items():
        module, _, side = name.removeprefix(_PREFIX).rpartition(".lora_")
        if side.startswith("B"):
            # This policy's factor is the same everywhere; B takes what rsLoRA or alpha_pattern made of it.
            weights[name] = tensor * (adapter_scale(found, module, tensor.shape[1]) / settings.scale)
    load_adapter_weights(model, weights, origin=str(directory))


def checkpoint_activations(model: Any, *, random: bool) -> None:  # a transformers model
    """Recompute every decoder layer in the backward pass instead of keeping its activations.

    It costs about a third more time. Unlike Hugging Face's ``gradient_checkpointing``, it works with every
    model. ``random``: the layers draw random numbers, which must be the same both times; a GPU has to be
    waited for to keep the state of its generator.
    """
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise LearnerError(
            f"{type(model).__name__} has no list of decoder layers to checkpoint; "
            "use gradient_checkpointing instead"
        )
    for layer in layers:
        _recompute(layer, random)


def _recompute(
    layer: Any, random: bool
) -> None:  # the type system does not allow replacing a module's forward
    forward = layer.forward

    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=random, **kwargs)

    layer.forward = checkpointed


def _adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if ".lora_" in name}


def _file_name(parameter_name: str) -> str:
    return _PREFIX + parameter_name.replace(".default.", ".")
