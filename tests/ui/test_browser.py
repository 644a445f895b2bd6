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


def test_curves_move_while_a_run_trains(tab: Tab, tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    events = stored(made_up_run("run-c", updates=6))
    with serving(place) as link, ArchiveWriter(place.archive, timeout_s=60) as writer:
        writer.write(events[: len(events) // 2])
        tab.go(link.replace("/?", "/data/runs/run-c?"))
        tab.wait("document.querySelectorAll('figure[data-drawn]').length > 3")
        tab.ask("document.querySelector('figure[data-key=loss]').scrollIntoView()")
        tab.wait("document.querySelector('figure[data-key=loss][data-drawn]') !== null")
        tab.ask("document.querySelector('figure[data-key=loss] details').open = true")
        points = "document.querySelectorAll('figure[data-key=loss] tbody tr').length"
        tab.wait(f"{points} > 0")
        before = tab.ask(points)
        writer.write(events[len(events) // 2 :])
        tab.wait("document.getElementById('facts').innerText.includes('6 of 6 updates')")
        tab.ask("window.again = () => { const d = document.querySelector('figure[data-key=loss] details');"
                "d.open = false; d.open = true; return true; }")  # fmt: skip
        tab.wait(f"again() && {points} > {before}")
        tab.ask("document.querySelector('input[value=hours]').click()")
        tab.wait("location.search === '?by=hours'")
        tab.ask("document.getElementById('theme').click()")
        tab.wait("document.documentElement.dataset.theme === 'dark'")
