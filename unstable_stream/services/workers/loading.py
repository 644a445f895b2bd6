"""Load what stays to the end of a process, without looking for garbage in it.

PyTorch, transformers and what they bring are half a million objects. Python's collector went through all of
them while they were imported, a sixth of the time of that, and then every few seconds, for 0.3 s each.
"""

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_loads: Final[list[object]] = []
"""One for each that is under way in this process."""


@contextmanager
def loading() -> Iterator[None]:
    """Look for no garbage meanwhile, and never in what is there at the end; see :func:`unload`.

    Garbage that is there before is found first: the model of an earlier run of this process may be in it.
    """
    enabled = gc.isenabled()
    if enabled:
        gc.collect()
    gc.disable()
    _loads.append(load := object())
    try:
        yield
    finally:
        _loads.remove(load)
        gc.freeze()
        if enabled:
            gc.enable()


def unload() -> None:
    """Look for garbage in everything again: what was loaded is no longer needed."""
    gc.unfreeze()


def _go_on_in_child() -> None:
    if _loads:
        _loads.clear()
        gc.enable()


# vLLM may fork its process meanwhile, which would look for no garbage to its end.
os.register_at_fork(after_in_child=_go_on_in_child)
# Else DuckDB would say at the end of the process that its objects were leaked.
atexit.register(unload)
