"""The pages in a real browser: they follow a run, and nothing that a model wrote does anything."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive.history import made_up_run, stored
from tests.ui.browser import BROWSER, Tab, opened_tab
from tests.ui.conftest import serving
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install -y chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with opened_tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """A tab that must not have complained at the end."""
    browser.complaints.clear()
    yield browser
    assert browser.complaints == []


def test_the_list_follows_a_run(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=4))
    with serving(place) as link:
        tab.go(link)
        assert "token" not in tab.ask("location.href")
        tab.wait("document.body.innerText.includes('No run has been archived')")
        with ArchiveWriter(place.archive, timeout_s=60) as writer:
            writer.write(events[:30])
            tab.wait("document.body.innerText.includes('made up run-c')")
            tab.wait("document.body.innerText.includes('running')")
            writer.write(events[30:])
            tab.wait("document.body.innerText.includes('4 of 4 updates')")
            tab.wait("document.body.innerText.includes('completed')")
        tab.go("about:blank")
