"""The pictures of docs/how-to/ui.md can be taken, of these pages as they are now."""

from pathlib import Path

import pytest

from docs.images.ui import take, take_play
from tests.api.untrained_run import record_untrained_run
from tests.ui.web.browser import NEEDS_BROWSER
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.events import game_id

pytestmark = [pytest.mark.longer, NEEDS_BROWSER]

_DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.long
def test_each_picture_of_the_docs_is_taken_and_shows_something(data: Path, tmp_path: Path) -> None:
    take(data, "run-a", game_id("run-a", "eval", 12), tmp_path)
    place = Place.at(tmp_path / "data")
    record_untrained_run(place, "run-played")
    archive(place)
    take_play(place.root, "run-played", tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.png")}
    assert sizes.keys() == {path.name for path in (_DOCS / "images").glob("ui-*.png")}
    page = (_DOCS / "how-to" / "ui.md").read_text(encoding="utf-8")
    for name, size in sizes.items():
        assert 5_000 < size < 300_000, f"{name}: a picture of one colour has a few hundred bytes"
        assert f"images/{name}" in page
