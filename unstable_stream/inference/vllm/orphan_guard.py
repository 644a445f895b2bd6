"""End vLLM's processes when the engine's owner is gone.

vLLM's engine process outlives an owner that was killed with SIGKILL and keeps its memory, on a GPU all of it.
The guard is a thread of vLLM's worker process, which starts it before it loads the model.
"""

import multiprocessing
import os
import select
import signal
import threading
import time

from unstable_stream.inference.vllm.process_variables import OWNER_VARIABLE

__all__ = ["start"]


def start() -> None:
    """Start the guard in a worker process of vLLM; elsewhere do nothing."""
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
    try:
        if hasattr(os, "pidfd_open"):
            poll = select.poll()
            poll.register(os.pidfd_open(pid), select.POLLIN)
            poll.poll()
            return
        while True:
            os.kill(pid, 0)
            # Only where there is no pidfd (not Linux): memory is held a second longer than needed.
            time.sleep(1.0)
    except ProcessLookupError:
        return
