"""Garbage in what was loaded: not looked for while the process works, found after that."""

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from unstable_stream.services.workers.loading import loading, unload


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Leave out of the search what was left out before the test, see conftest.py."""
    yield
    gc.freeze()


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


def test_garbage_from_before_and_a_load_that_fails() -> None:
    before = Node()
    gone = weakref.ref(before)
    del before
    with pytest.raises(ValueError, match="no model"), loading():
        raise ValueError("no model")
    assert gone() is None
    assert gc.isenabled()


def test_a_process_that_is_forked_meanwhile_looks_for_garbage() -> None:
    code = """
import gc, os
from unstable_stream.services.workers.loading import loading
def enabled_in_child():
    child = os.fork()
    if child == 0:
        os._exit(gc.isenabled())
    return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with loading():
    assert enabled_in_child()
gc.disable()
assert not enabled_in_child()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_two_loads_at_once() -> None:
    first, second = loading(), loading()
    with first:
        second.__enter__()
    assert gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
