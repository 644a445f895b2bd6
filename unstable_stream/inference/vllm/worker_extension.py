"""The code that this package adds to vLLM's worker processes.

vLLM imports this module there by name (``worker_extension_cls``). Importing it starts the guard of
:mod:`.orphan_guard`, so nothing else may import it.
"""

import sys
from typing import Any

from unstable_stream.inference.vllm import orphan_guard

__all__ = ["WorkerExtension"]

orphan_guard.start()
if "vllm.platforms" in sys.modules:  # as in every process of vLLM
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from unstable_stream.inference.vllm import batched_lora

        batched_lora.install()


class WorkerExtension:
    """Methods that vLLM adds to its worker."""

    model_runner: Any
    """The worker's own."""

    def modules_left_out(self, number: int) -> list[str]:
        """Return the modules of the loaded adapter that this worker's part of the model does not have.

        vLLM applies an adapter where the names match and passes over the rest without a word, so that one of
        other names plays as the base model (vLLM #34186).
        """
        manager = self._adapter_manager()
        # Of fused experts vLLM keeps one of the two pairs under this name.
        adapted = {name.removesuffix(".base_layer") for name in manager.get_adapter(number).loras}
        return sorted(adapted - manager.modules.keys())

    def lora_products(self) -> list[str]:
        """Return the names of the classes that apply adapters in this worker."""
        wrappers = self._adapter_manager().punica_wrapper_mapping.values()
        return sorted({type(wrapper).__name__ for wrapper in wrappers})

    def _adapter_manager(self) -> Any:
        return self.model_runner.lora_manager._adapter_manager
