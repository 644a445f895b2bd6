"""The list of runs, and the same pages of a shared archive."""

import re
from collections.abc import Mapping
from datetime import UTC, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.archive.history import GAMES_PER_UPDATE, START_MS, made_up_run, stored
from tests.builders import made
from tests.history.views.conftest import ATTACK
from tests.places import archived
from tests.runs.sweep_events import sweep_events
from tests.ui.web.conftest import client_of, shown
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter, drop_run
from unstable_stream.errors import RunError
from unstable_stream.events import RunStarted
from unstable_stream.history.views.run_list import life_of, list_runs
from unstable_stream.log.stores.archive_address import ARCHIVE_VARIABLE, ArchiveAddress
from unstable_stream.ui.web import Site

pytestmark = pytest.mark.longer


def test_a_run_has_state_progress_win_rate_speed_and_trouble(archive: Path) -> None:
    one, other = sorted(list_runs(archive), key=lambda run: run.run_id)
    assert (one.run_id, one.state) == ("run-a", "completed")
    assert (one.updates, one.last_update, one.iterations) == (6, 6, 6)
    assert one.progress == 1.0
    assert one.games == 6 * GAMES_PER_UPDATE + 2 * 7
    # Each checkpoint plays one evaluation game per seat, and from the second on wins the one as seat 0.
    assert one.telling is not None
    assert [point.share for point in one.telling.points] == [0.0, *[0.5] * 6]
    assert (one.telling.against, one.telling.latest.games) == ("against random", 2)
    # A game a second, the last at its 38th.
    assert one.games_per_s == pytest.approx(38 / 37)
    assert one.trouble is not None
    assert one.trouble.startswith("60% of the answers")
    assert (other.run_id, other.recorded_state, other.finished_at) == ("run-b", "running", None)
    assert other.trouble is None
    # It was recorded long ago.
    assert other.state == "lost"
    assert other.silence.startswith("silent for ")
    assert one.silence == ""
    assert life_of("running", other.last_at, other.last_at.replace(tzinfo=UTC))[0] == "running"
    assert timedelta() < other.last_at - other.started_at < timedelta(minutes=1)


def test_the_page_lists_them(client: TestClient, base: str) -> None:
    page = client.get(f"{base}/").text
    assert "made up run-a" in page
    assert "6 of 6 updates, 38 games" in page
    assert page.count("<polyline") == 2
    assert '<b class="nowrap">50.0 %</b> <span class="quiet nowrap">9.5 % to 90.5 %</span>' in page
    assert "<small>against random, update 6, 2 games</small>" in page
    assert "60% of the answers" in page
    assert 'state-lost">lost</span><small>silent for' in page


def test_an_archive_that_is_not_there_yet(tmp_path: Path) -> None:
    place = Place.at(tmp_path / "new")
    with client_of(place) as client:
        assert "unstable-stream quickstart --data" in client.get("/").text
        place.root.mkdir()
        archived(place.root, made_up_run("run-c", updates=1))
        assert "made up run-c" in client.get("/").text


@pytest.mark.parametrize("kind", ["file", "shared"])
def test_dropped_runs_are_listed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    if kind == "shared":
        monkeypatch.setenv(ARCHIVE_VARIABLE, f"delta:{tmp_path / 'shared'}")
    place = Place.at(tmp_path / "data")
    with ArchiveWriter(place.archive) as writer:
        writer.write(stored(made_up_run("run-c", updates=1) + made_up_run("run-d", updates=1)))
    dropped = drop_run(place.archive, "run-d")
    with client_of(place) as client:
        page = client.get("/").text
        assert 'Last games of <a href="/data/runs/run-c">made up run-c</a>' in page
        rows = page.split("</table>")[0].split("<tr>")[2:]
        assert ["made up run-c" in row for row in rows] == [True, False]
        assert 'state-dropped">dropped</span>' in rows[1]
        assert f'<time datetime="{dropped.dropped_at.isoformat()}Z">' in rows[1]
        assert f"{dropped.records:,} records taken out of the archive" in rows[1]
        # It leads nowhere, cannot be chosen, and one run alone has nothing to be compared with.
        assert "href" not in rows[1]
        assert "checkbox" not in "".join(rows)
        drop_run(place.archive, "run-c")
        page = client.get("/").text
        assert page.index("made up run-c") < page.index("made up run-d")
        assert "No run has been archived" not in page


def test_several_places(data: Path, tmp_path: Path) -> None:
    with client_of(Place.at(data), Place.at(tmp_path / "other")) as client:
        page = client.get("/").text
        assert ">other</a>" in page
        assert "No run has been archived" in client.get("/other/").text
        assert client.get("/nowhere/").status_code == 404


def test_pages_see_what_is_written_meanwhile(tmp_path: Path) -> None:
    place = Place.at(tmp_path)
    events = stored(made_up_run("run-c", updates=3))
    with client_of(place) as client, ArchiveWriter(place.data.archive_file) as writer:
        seen = set()
        for first in range(0, len(events), 25):
            writer.write(events[first : first + 25])
            page = client.get("/").text
            seen.add(page[page.index("updates, ") :].split()[1])
        assert "3 of 3 updates" in client.get("/").text
    assert len(seen) > 2


def test_what_fails_is_not_remembered(archive: Path) -> None:
    (shelf,) = Site([Place.at(archive.parent)]).shelves.values()

    def fail(path: ArchiveAddress) -> None:
        raise RunError(str(path))

    for _ in range(2):
        with pytest.raises(RunError):
            shelf.remember("one", fail)
    assert [shelf.remember("one", lambda path: 1), shelf.remember("one", fail)] == [1, 1]


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


@pytest.mark.long
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


def test_a_sweep_is_one_link_to_its_runs_and_their_means(tmp_path: Path) -> None:
    with shown(tmp_path, *sweep_events("a&b")) as (client, place):
        listed = client.get(f"{place}/").text
        assert (
            f'<a href="{place}/compare?sweep=a%26b">a&amp;b</a> <span class="quiet">(6 runs)</span>' in listed
        )
        compared = client.get(f"{place}/compare?sweep=a%26b").text
        assert "6 of 6 runs chosen" in compared
        assert "learning_rate=0.001" in compared
        assert "73.3 %" in compared
        assert "<b>learning_rate=0.001</b>" in compared, "the baseline"
        other = client.get(f"{place}/compare?sweep=a%26b&baseline=demo-0.5-1").text
        assert "<b>learning_rate=0.5</b>" in other
        assert "selected>learning_rate=0.5</option>" in other
        assert '<b>100.0 %</b> <span class="quiet nowrap">43.9 % to 100.0 %</span>' in other
        runs = "&".join(f"run=demo-0.001-{seed}" for seed in range(3))
        sections = client.get(f"{place}/charts.json?{runs}").json()["sections"]
        assert sections[0]["title"] == "By configuration"
        assert len(sections[0]["charts"][0]["series"]) == 1


def test_those_that_belong_to_a_run_stand_below_it_and_can_be_folded(tmp_path: Path) -> None:
    parent = {"parent_run_id": "run-c", "parent_update": 1}
    named = {
        "run-d": (f"{ATTACK}", {"learner": {"iterations": 9}}),
        "run-e": ("eval", {"learner": {"iterations": 1}}),
    }
    belonging = [
        made(RunStarted, run_id=run, occurred_at_ms=START_MS + 60_000, name=name, config=config, **parent)
        for run, (name, config) in named.items()
    ]
    other = made(
        RunStarted, run_id="run-f", occurred_at_ms=START_MS + 90_000, config={"learner": {"iterations": 9}}
    )
    with shown(tmp_path, *made_up_run("run-c", updates=1), *belonging, other) as (client, base):
        page = client.get(f"{base}/").text
    alone, family = page.split('<tbody id="group-')[1:]
    assert alone.startswith("run-f")
    assert "with " not in alone
    places = [family.index(f"<code>{run}</code>") for run in ("run-c", "run-d", "run-e")]
    assert places == sorted(places)
    assert family.count('<tr class="member">') == 2
    assert '<input type="checkbox" value="group run-c" checked> with 1 evaluation, 1 fork</label>' in family
    assert f'{base}/compare?run=run-c&amp;run=run-d">Compare the 2 that train</a>' in family
    assert ATTACK not in page
    assert "<small>0 games</small>" in family, "an evaluation makes no updates"
