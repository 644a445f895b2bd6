"""Refuse a model that cannot be played or trained, by its small files, before anything is started."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from unstable_stream.errors import ConfigError
from unstable_stream.inference.adapter_files import check_target_modules
from unstable_stream.inference.model_config import read_config

KNOWN_TYPES: Final = frozenset(
    {
        *("llama", "mistral", "mistral3", "qwen2", "qwen3", "gemma", "gemma3", "gemma3_text", "phi3"),
        *("smollm3", "olmo2", "granite"),
    }
)
"""Types that tests have shown to play and to train. Any other one is tried without its weights, which imports
PyTorch and takes some seconds."""


def check_model(
    model_path: str, *, plays_here: bool, trains: bool = False, targets: Sequence[str] | None = None
) -> None:
    """Check that a model can be played, and trained, as far as its configuration and layers show it.

    Args:
        model_path: its directory.
        plays_here: whether the transformers engine plays it; others refuse for themselves.
        trains: whether it is trained.
        targets: the layers that get an adapter; ``None``: none do.

    Raises:
        ConfigError: it cannot be; says why and what would do.
    """
    config = read_config(Path(model_path))
    if trains and (quantised := config.get("quantization_config")):
        method = quantised.get("quant_method", "") if isinstance(quantised, dict) else ""
        raise ConfigError(
            f"{model_path} holds quantised weights ({method or 'quantization_config in config.json'}), which "
            "are not trained: take the model that they were made from, in bfloat16, float16 or float32"
        )
    if not (plays_here or trains):
        return
    if config.get("model_type") not in KNOWN_TYPES:
        from unstable_stream.inference.transformers.trial import try_model

        try_model(model_path, plays_here=plays_here, trains=trains, targets=targets)
    elif targets is not None:
        check_target_modules(Path(model_path), targets)
