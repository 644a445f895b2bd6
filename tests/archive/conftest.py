"""What several tests of archives use."""

from pathlib import Path

import pytest


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Return the address of a shared archive that is not there yet."""
    return f"delta:{tmp_path / 'shared'}"
