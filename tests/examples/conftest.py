"""The real language model of ``make smollm2``."""

from pathlib import Path

import pytest

from examples.smollm2.convert import convert


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with SmolLM2-135M-Instruct."""
    return convert(tmp_path_factory.mktemp("smollm2") / "model")
