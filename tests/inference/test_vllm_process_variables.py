"""What surrounds the vLLM engine and needs no vLLM: variables, refused settings, the orphan guard."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from unittest import mock

import pytest

from unstable_stream.errors import EngineError
from unstable_stream.inference.vllm.client import DEFAULTS, OWNER_VARIABLE, child_environment, set_defaults
from unstable_stream.inference.vllm.engine import VllmEngine

OTHERS = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONWARNINGS", "OMP_NUM_THREADS")


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    """None of the variables is set before, and all are as they were afterwards."""
    with mock.patch.dict(os.environ):
        for name in (*DEFAULTS, *OTHERS):
            os.environ.pop(name, None)
        yield


def test_defaults_are_set_and_what_the_user_set_is_kept() -> None:
    os.environ["VLLM_LOGGING_LEVEL"] = "DEBUG"
    os.environ["DO_NOT_TRACK"] = "0"
    set_defaults(offline=False)
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["DO_NOT_TRACK"] == "0"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
    assert "HF_HUB_OFFLINE" not in os.environ
    set_defaults(offline=True)  # a local model is never looked up on a hub
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert os.environ["TRANSFORMERS_OFFLINE"] == "1"


def test_the_childrens_environment_is_theirs_alone() -> None:
    os.environ["OMP_NUM_THREADS"] = "3"
    os.environ[OWNER_VARIABLE] = "1"
    before = dict(os.environ)
    with child_environment(on_cpu=True, compiled=False):
        assert os.environ[OWNER_VARIABLE] == str(os.getpid())
        assert os.environ["OMP_NUM_THREADS"] == "3"
        assert os.environ["PYTHONWARNINGS"] == "ignore"
        assert os.environ["TORCH_COMPILE_DISABLE"] == "1"
    with child_environment(on_cpu=True, compiled=False, num_threads=5):
        assert os.environ["OMP_NUM_THREADS"] == "5"
    assert dict(os.environ) == before


def test_one_core_is_left_to_others_and_a_gpu_needs_no_limit() -> None:
    with child_environment(on_cpu=True, compiled=True):
        assert int(os.environ["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) - 1)
        assert "TORCH_COMPILE_DISABLE" not in os.environ
    with child_environment(on_cpu=False, compiled=True):
        assert "OMP_NUM_THREADS" not in os.environ


def test_without_vllm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(EngineError, match=r"pip install 'unstable_stream\[vllm\]'.*make vllm-env"):
        VllmEngine("some/model")


# Stands in for vLLM: an owner starts an engine process, which starts a worker, which loads the guard. All
# hold the pipe that the test reads; it ends when the last of them is gone.
TREE = """
import multiprocessing, os, sys, time

def worker(pipe):
    import unstable_stream.inference.vllm.worker_extension
    os.write(pipe, b"w")
    time.sleep(600)

def engine(pipe, nested):
    if nested:
        multiprocessing.get_context("fork").Process(target=worker, args=(pipe,)).start()
        time.sleep(600)
    else:
        worker(pipe)

if __name__ == "__main__":
    from unstable_stream.inference.vllm.client import child_environment
    pipe = int(sys.argv[1])
    with child_environment(on_cpu=True, compiled=True):
        arguments = (pipe, sys.argv[2] == "nested")
        multiprocessing.get_context("fork").Process(target=engine, args=arguments).start()
    time.sleep(600)
"""


@pytest.mark.parametrize("shape", ["flat", "nested"])
def test_engine_processes_end_when_their_owner_is_killed(shape: str) -> None:
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", TREE, str(write), shape], pass_fds=(write,)) as owner:
        os.close(write)
        try:
            assert os.read(read, 1) == b"w"
            # The guard leaves everyone alone while the owner lives.
            assert select.select([read], [], [], 0.2)[0] == []
            owner.send_signal(signal.SIGKILL)
            ready, _, _ = select.select([read], [], [], 20)
            assert ready, "a process of the engine outlived its owner"
            assert os.read(read, 1) == b""
        finally:
            owner.kill()
            os.close(read)
