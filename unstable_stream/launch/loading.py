"""What a process loads when it starts stays to its end, so that no garbage is found in it.

PyTorch, transformers and what they bring are half a million objects. Python's collector went through all of
them while they were imported, a sixth of the time of that, and then every few seconds, for 0.3 s each.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["loading", "unload"]


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage meanwhile, and never in what is there at the end; see :func:`unload`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def unload() -> None:
    """Look for garbage in everything again: what was loaded is no longer needed, or the process ends."""
    gc.unfreeze()
