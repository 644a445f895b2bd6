"""What several tests of archives use."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Return the address of a shared archive that is not there yet."""
    return f"delta:{tmp_path / 'shared'}"


@pytest.fixture
def before_commits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have other processes do these works right before the next commits, which then come second."""

    from unstable_stream.archive.shared.table import SharedTable  # deltalake may not be installed

    def arrange(*works: Callable[[], object]) -> None:
        commit, waiting = SharedTable.commit, list(works)

        def late(self: SharedTable, *args: object, **options: object) -> bool:
            if waiting:
                waiting.pop(0)()
            return commit(self, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(SharedTable, "commit", late)

    return arrange
