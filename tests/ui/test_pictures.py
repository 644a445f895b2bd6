"""The pictures of docs/ui.md can be taken, of these pages as they are now."""

import zlib
from pathlib import Path

import pytest

from docs.images.ui import take
from tests.ui.browser import BROWSER
from unstable_stream.events import game_id

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install -y chromium")

_DOCS = Path(__file__).parents[2] / "docs"


def _bytes_of(png: bytes) -> set[int]:
    """Return the different bytes of the picture's rows: few, if it is of one colour."""
    packed, at = b"", 8
    while at < len(png):
        length = int.from_bytes(png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += length + 12
    return set(zlib.decompress(packed))


def test_each_picture_of_the_docs_is_taken_and_shows_something(data: Path, tmp_path: Path) -> None:
    take(data, "run-a", game_id("run-a", "eval", 12), tmp_path)
    taken = {path.name: path.read_bytes() for path in tmp_path.glob("*.png")}
    assert set(taken) == {path.name for path in (_DOCS / "images").glob("ui-*.png")}
    for name, png in taken.items():
        assert len(_bytes_of(png)) > 50, name
        assert len(png) < 300_000, name
        assert f"images/{name}" in (_DOCS / "ui.md").read_text(encoding="utf-8")
