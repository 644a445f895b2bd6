"""Pages about two made-up runs, one of whose models tries to write itself into the page; one browser."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests import places
from tests.history.views.conftest import archive as archive  # a fixture
from tests.ui.web.browser import Tab, opened_tab
from unstable_stream.api.place import Place
from unstable_stream.events import Event
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.ui.web import Site, build_app
from unstable_stream.ui.web.serve import served

TOKEN = "a-token"
HOST = "127.0.0.1:8787"
RECORDED = "run-asked"
"""The run of :func:`recorded`."""


@pytest.fixture(scope="session")
def data(archive: Path) -> Path:
    """The data directory."""
    assert DataDir(archive.parent).archive == archive
    return archive.parent


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run of real games, on the log and in the archive."""
    return places.recorded(tmp_path_factory.mktemp("asked"), RECORDED, hosted=False)


@contextmanager
def client_of(*places: Place) -> Iterator[TestClient]:
    """A browser without scripts that has opened the link."""
    app = build_app(Site(places), token=TOKEN, hosts=[HOST])
    with TestClient(app, base_url=f"http://{HOST}") as client:
        client.get(f"/?token={TOKEN}")
        yield client


@contextmanager
def shown(data: Path, *events: Event) -> Iterator[tuple[TestClient, str]]:
    """A browser without scripts, and how the addresses of a new archive of these events begin."""
    places.archived(data, events)
    with client_of(Place.at(data)) as client:
        yield client, f"/{data.name}"


@pytest.fixture(scope="session")
def client(data: Path) -> Iterator[TestClient]:
    with client_of(Place.at(data)) as client:
        yield client


@pytest.fixture(scope="session")
def base(data: Path) -> str:
    """Begins the addresses of the place's pages."""
    return f"/{next(iter(Site([Place.at(data)]).shelves))}"


@contextmanager
def serving(*places: Place) -> Iterator[str]:
    """Serve on a free port; yield the link."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server, link = served(places, bound)
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            yield link
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """Whoever asks for it skips where there is none."""
    with opened_tab(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """A tab as it was opened; it must not have complained at the end."""
    browser.go("about:blank")
    browser.complaints.clear()
    browser.prefer("light")
    browser.resize(1180, 900)
    yield browser
    assert browser.complaints == []


@contextmanager
def visited(tab: Tab, place: Place) -> Iterator[str]:
    """Serve a place as long as the tab looks at it, and open it; yield how its addresses begin."""
    with serving(place) as link:
        tab.go(link)
        try:
            yield tab.ask("location.origin + location.pathname")
        finally:
            tab.go("about:blank")  # a page whose server ends would complain
