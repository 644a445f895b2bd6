"""Garbage in what was loaded: not looked for while the process works, found after that."""

import gc
import weakref

from unstable_stream.launch.loading import loading, unload


class Node:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_loaded_is_passed_by_until_it_is_unloaded() -> None:
    with loading():
        assert not gc.isenabled()
        loaded = Node()
    assert gc.isenabled()
    later = Node()
    gone = weakref.ref(loaded), weakref.ref(later)
    del loaded, later
    gc.collect()
    assert gone[0]() is not None
    assert gone[1]() is None
    unload()
    gc.collect()
    assert gone[0]() is None


def test_who_looks_for_no_garbage_goes_on_like_that() -> None:
    gc.disable()
    try:
        with loading():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_two_loads_at_once() -> None:
    first, second = loading(), loading()
    with first:
        second.__enter__()
    assert gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
