"""The code that this package adds to vLLM's worker processes.

vLLM imports this module there by name (``worker_extension_cls``). Importing it starts the guard of
:mod:`.orphan_guard`, so nothing else may import it.
"""

from typing import Any

from unstable_stream.inference.vllm import orphan_guard

__all__ = ["WorkerExtension"]

orphan_guard.start()


class WorkerExtension:
    """Methods that vLLM adds to its worker."""

    model_runner: Any
    """The worker's own."""

    def modules_left_out(self, number: int) -> list[str]:
        """Return the modules of the loaded adapter that this worker's part of the model does not have.

        vLLM applies an adapter where the names match and passes over the rest without a word, so that one of
        other names plays as the base model (vLLM #34186).
        """
        manager = self.model_runner.lora_manager._adapter_manager
        # Of fused experts vLLM keeps one of the two pairs under this name.
        adapted = {name.removesuffix(".base_layer") for name in manager.get_adapter(number).loras}
        return sorted(adapted - manager.modules.keys())
