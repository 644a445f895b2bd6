"""The code that this package adds to vLLM's worker processes.

vLLM imports this module there by name (``worker_extension_cls``). Importing it starts
:func:`start_orphan_guard`, so nothing else may import it.
"""

import multiprocessing
import os
import select
import signal
import sys
import threading
from typing import Any

from unstable_stream.inference.vllm.client import OWNER_VARIABLE


def start_orphan_guard() -> None:
    """End vLLM's processes when the engine's owner is gone; elsewhere than in a worker process do nothing.

    vLLM's engine process outlives an owner that was killed with SIGKILL and keeps its memory, on a GPU all
    of it. The guard is a thread of vLLM's worker process, which starts it before it loads the model.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    # The parent as it was when this process was started: the system gives orphans another one.
    parent = multiprocessing.parent_process()
    if owner is not None and parent is not None and parent.pid is not None:
        threading.Thread(
            target=_guard, args=(int(owner), parent.pid), name="unstable-stream-orphan-guard", daemon=True
        ).start()


def _guard(owner: int, parent: int) -> None:
    _wait_for_exit(owner)
    # The worker is the engine process itself (then its parent is the owner) or the engine process's child.
    if parent != owner and os.getppid() == parent:
        os.kill(parent, signal.SIGKILL)
    os._exit(1)


def _wait_for_exit(pid: int) -> None:
    poll = select.poll()
    try:
        poll.register(os.pidfd_open(pid), select.POLLIN)
    except ProcessLookupError:
        return
    poll.poll()


start_orphan_guard()
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
