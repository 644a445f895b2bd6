"""What ``plan`` foretells of an engine's memory, against a real one."""

import importlib.util

import pytest

from benchmarks.memory_plan import CASES, compare
from unstable_stream.inference.tiny_player import tiny_player_path

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("case", ["as it is", "vLLM"])
def test_an_engine_takes_what_is_foretold(case: str) -> None:
    """Of a small model nearly all is libraries, the part that a new version of them changes."""
    if CASES[case] and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make vllm-env")
    (row,) = compare(str(tiny_player_path()), "tiny player", case, "engine")
    assert abs(row["error"]) < 0.1, row
