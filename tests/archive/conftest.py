"""What several tests of archives use."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.archive.content import content
from tests.archive.history import made_up_run, stored
from tests.conftest import Archives
from unstable_stream.archive import ArchiveWriter
from unstable_stream.log.stores.archive_address import is_shared


@pytest.fixture(scope="session")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DuckDB file in which all records of :func:`made_up_run` were stored once, in one batch."""
    path = tmp_path_factory.mktemp("whole") / "archive.duckdb"
    with ArchiveWriter(path) as writer:
        writer.write(stored(made_up_run()))
    return path


@pytest.fixture(scope="session")
def whole(whole_file: Path) -> dict[str, list[str]]:
    """What any archive of them must have, but for the numbers of the records."""
    return content(whole_file)


@pytest.fixture
def once(archive_at: Archives, whole_file: Path) -> dict[str, list[str]]:
    """What an archive of this test's kind must have, with the numbers where they are always the same."""
    return content(whole_file, numbered=not is_shared(archive_at("any")))


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
