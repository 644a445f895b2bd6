"""The directory of an export in the place of a data directory, as a user names it."""

from pathlib import Path

import pytest

from tests.archive.history import made_up_run
from tests.places import append, ask, recorded
from unstable_stream.api.archived import export_run
from unstable_stream.api.place import Place
from unstable_stream.api.replaying import Replay
from unstable_stream.api.serving import archive
from unstable_stream.api.why import find_why
from unstable_stream.log.stores.archive_address import ARCHIVE_VARIABLE, archive_exists, archive_state
from unstable_stream.ui.web.site import Site

pytestmark = pytest.mark.longer


def test_commands_read_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, out = recorded(tmp_path / "data", "run-a"), tmp_path / "out"
    append(place.root, made_up_run("run-b", updates=1))
    archive(place)
    export_run(place.archive, "run-a", out)
    # It wins over the shared archive of the host: it was named in this call.
    monkeypatch.setenv(ARCHIVE_VARIABLE, f"delta:{tmp_path / 'none'}")
    kept = Place.at(out)
    assert kept.has_archive
    assert archive_exists(kept.archive)
    assert archive_state(kept.archive)
    monkeypatch.delenv(ARCHIVE_VARIABLE)
    for command in (
        ["sql", "SELECT game_id, rewards FROM games WHERE run_id = 'run-a' ORDER BY game_id", "--csv"],
        ["games", "--run", "run-a", "--csv"],
        ["why", "run-a:update:1"],
    ):
        here, there = ask(out, *command), ask(place.root, *command)
        assert here.exit_code == 0, (command, here.output)
        assert here.stdout == there.stdout
    assert repr(find_why(kept, "run-a:update:1")) == repr(find_why(place, "run-a:update:1"))
    from_data, from_export = (list(Replay(each, "run-a", source="archive")) for each in (place, kept))
    assert from_data == from_export
    assert ask(out, "report", "run-a", "-o", str(tmp_path / "page.html")).exit_code == 0
    (shelf,) = Site([kept]).shelves.values()
    assert [line.run_id for line in shelf.runs()] == ["run-a"]
    refused = ask(out, "rm", "run-a", "--force")
    assert "is an export, which is only read" in str(refused.exception)


def test_an_export_takes_no_run_and_hides_no_archive(tmp_path: Path) -> None:
    place = Place.at(tmp_path / "data")
    append(place.root, made_up_run("run-a", updates=1))
    archive(place)
    (place.root / "manifest.json").write_text('{"name": "of a web page"}')
    assert ask(place.root, "runs", "--csv").exit_code == 0
    export_run(place.archive, "run-a", tmp_path / "out")
    before = sorted((tmp_path / "out").iterdir())
    refused = ask(tmp_path / "out", "train", "examples/simpletak.toml", "-q")
    assert refused.exit_code == 1
    assert "is an export, which is only read: name another data directory" in str(refused.exception)
    refused = ask(tmp_path / "out", "rm", "run-a")
    assert "is an export, which is only read: delete it" in str(refused.exception)
    assert sorted((tmp_path / "out").iterdir()) == before
