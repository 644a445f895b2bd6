"""Pages about two made-up runs, one of whose models tries to write itself into the page."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.views.conftest import archive as archive  # a fixture
from unstable_stream.api.place import Place
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.ui import Site, build_app
from unstable_stream.ui.serve import served

TOKEN = "a-token"
HOST = "127.0.0.1:8787"


@pytest.fixture(scope="session")
def data(archive: Path) -> Path:
    """The data directory."""
    assert DataDir(archive.parent).archive == archive
    return archive.parent


@contextmanager
def client_of(*places: Place) -> Iterator[TestClient]:
    """A browser without scripts that has opened the link."""
    app = build_app(Site(places), token=TOKEN, hosts=[HOST])
    with TestClient(app, base_url=f"http://{HOST}") as client:
        client.get(f"/?token={TOKEN}")
        yield client


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
