"""The LoRA ranks that vLLM has kernels for, to check a configuration where vLLM is not installed."""

from typing import Final

__all__ = ["VLLM_LORA_RANKS"]

VLLM_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that ``max_lora_rank`` may have."""
