"""The live pages on a shared archive: what they show of a DuckDB file with the same records."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.archive.history import made_up_run, stored
from tests.ui.web.conftest import client_of
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter
from unstable_stream.log.stores.archive_address import ARCHIVE_VARIABLE
from unstable_stream.ui.web import Site

pytestmark = pytest.mark.longer

_PAGES = 20


def _walk(client: TestClient, base: str) -> Mapping[str, str]:
    """Follow the links from the list of runs on; return the words of each page."""
    found: dict[str, str] = {}
    waiting = [f"{base}/"]
    while waiting and len(found) < _PAGES:
        path = waiting.pop(0)
        answer = client.get(path.replace("&amp;", "&"))
        assert answer.status_code == 200, f"{path}: {answer.text[:500]}"
        # Without tags; each page names the archive, and some how long it took.
        found[path] = re.sub(r"<[^>]*>|\d+(\.\d+)? m?s\b|archive \S+;", "", answer.text)
        links = re.findall(rf'href="({re.escape(base)}/[^"#]*)"', answer.text)
        waiting += [link for link in dict.fromkeys(links) if link not in found and link not in waiting]
    return found


def test_the_same_pages_as_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = stored(made_up_run())
    place = Place.at(tmp_path / "data")
    base = f"/{next(iter(Site([place]).shelves))}"
    place.data.archive_file.parent.mkdir()
    with ArchiveWriter(place.archive) as writer:
        writer.write(records)
    with client_of(place) as client:
        of_a_file = _walk(client, base)
    monkeypatch.setenv(ARCHIVE_VARIABLE, f"delta:{tmp_path / 'shared'}")
    place.data.archive_file.unlink()
    with ArchiveWriter(place.archive) as writer:
        for start in range(0, len(records), 60):
            writer.write(records[start : start + 60])
    with client_of(place) as client:
        assert _walk(client, base) == of_a_file
    assert len(of_a_file) == _PAGES
    assert "made up run-a" in of_a_file[f"{base}/"]
