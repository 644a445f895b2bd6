"""The settings that the vLLM engine does not take, to check a configuration where vLLM is not installed."""

from collections.abc import Mapping
from typing import Any, Final

from unstable_stream.errors import ConfigError

VLLM_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that ``max_lora_rank`` may have."""

_OWN_ARGUMENTS: Final[Mapping[str, str]] = {
    "enable_lora": "set max_loras; 0 is the base model alone",
    "enable_sleep_mode": "nothing lets the engine sleep, and vLLM has lost adapters over it (#53888, #39934)",
    "logprobs_mode": "log-probabilities are those of the distribution sampled from",
    "lora_target_modules": "vLLM would play an adapter of other modules as the base model (#55193)",
    "max_cpu_loras": "it follows from max_loras",
    "max_lora_rank": "it follows from the rank of the adapter",
    "max_loras": "set max_loras of the engine",
    "model": "set the model of the run",
    "worker_extension_cls": "the engine's own one checks adapters and ends orphans",
}
"""Arguments of vLLM that the engine decides, and why or what to set instead."""


def check_extra_engine_args(extra: Mapping[str, Any]) -> None:
    """Check arguments for vLLM; raises :class:`ConfigError` for one that the engine decides itself."""
    for name, reason in _OWN_ARGUMENTS.items():
        if name in extra:
            raise ConfigError(f"extra_engine_args sets {name}: remove it; {reason}")
