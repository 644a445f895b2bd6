"""What all test modules that start vLLM share."""

import importlib.util
import os
from collections.abc import Iterator
from unittest import mock

import pytest
import torch

NEEDS_VLLM = [
    # Importing vLLM makes torch define its own classes with a decorator it has itself deprecated.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning:torch.jit"),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed: make vllm-env (with a CUDA GPU: [vllm])",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def beside_vllm() -> Iterator[None]:
    """Compute with one thread beside vLLM's: with more than there are cores each waits for the others.

    And take back the variables that vLLM sets for its own processes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with mock.patch.dict(os.environ):
        yield
    torch.set_num_threads(threads)
