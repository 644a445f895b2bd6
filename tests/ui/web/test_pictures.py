"""The pictures of docs/ui.md can be taken, of these pages as they are now."""

from pathlib import Path

import pytest

from docs.images.ui import take, take_play
from tests.api.untrained_run import record_untrained_run
from tests.ui.web.browser import NEEDS_BROWSER
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.archive import query
from unstable_stream.events import game_id

pytestmark = [pytest.mark.longer, NEEDS_BROWSER]

_DOCS = Path(__file__).parents[3] / "docs"


def _assert_in_the_docs(path: Path) -> None:
    """Assert that it shows something, is small, and belongs to a page."""
    # A picture of one colour has a few hundred bytes.
    assert 5_000 < path.stat().st_size < 300_000, path.name
    assert f"images/{path.name}" in (_DOCS / "ui.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_each_picture_of_the_docs_is_taken_and_shows_something(data: Path, tmp_path: Path) -> None:
    take(data, "run-a", game_id("run-a", "eval", 12), tmp_path)
    taken = {path.name for path in tmp_path.glob("*.png")}
    assert taken | {"ui-play.png"} == {path.name for path in (_DOCS / "images").glob("ui-*.png")}
    for name in taken:
        _assert_in_the_docs(tmp_path / name)


@pytest.mark.long
def test_the_picture_of_a_game_that_is_played(tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    record_untrained_run(place, "run-played")
    archive(place)
    take_play(tmp_path / "data", "run-played", tmp_path)
    _assert_in_the_docs(tmp_path / "ui-play.png")
    assert query(place.archive, "SELECT split FROM games").rows == [("human",)]
