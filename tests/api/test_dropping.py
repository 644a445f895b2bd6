"""Dropping a run as a user does it, and what all others that read the archive say of the run afterwards."""

from collections.abc import Callable
from pathlib import Path

import pytest

import unstable_stream as us
from tests.archive.history import made_up_run
from tests.history.proofs.recorded_run import record_run
from tests.places import append, ask, on_log
from tests.tiers import chosen
from unstable_stream.api.archived import export_run, find_runs
from unstable_stream.api.checkpoints import CheckpointName
from unstable_stream.api.dropping import drop_run, look_at_run
from unstable_stream.api.place import Place
from unstable_stream.api.replaying import Replay
from unstable_stream.api.run import fork_run
from unstable_stream.api.serving import archive
from unstable_stream.api.why import find_why
from unstable_stream.archive import query
from unstable_stream.errors import ArchiveError, RunError, UnstableStreamError
from unstable_stream.events import RunFinished
from unstable_stream.log.local.log import LocalLog
from unstable_stream.log.reading import ends_of
from unstable_stream.log.stores.archive_address import ARCHIVE_VARIABLE
from unstable_stream.ui.web.site import Site

pytestmark = pytest.mark.longer

OTHER = "run-other"


@pytest.fixture(params=["file", "shared"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of archive that all places of a test have."""
    if request.param == "shared":
        monkeypatch.setenv(ARCHIVE_VARIABLE, f"delta:{tmp_path / 'shared'}")
    return str(request.param)


FILE_OR_LONG = chosen("kind", ["file"], ["shared"], indirect=True)


def lose_the_archive(data: Path) -> None:
    """Move the archive out of the way."""
    for path in [*data.glob("archive.duckdb*"), *data.glob("shared")]:
        path.rename(path.with_name(f"away-{path.name}"))


def expire(data: Path) -> None:
    """Delete all records of the log."""

    async def delete(log: LocalLog) -> None:
        await log.delete_before(await ends_of(log, await log.topics()))

    on_log(data, delete)


def _records_of(place: Place, run: str) -> int:
    ((records,),) = query(place.archive, "SELECT count(*) FROM events WHERE run_id = ?", [run]).rows
    return int(records)


def test_it_is_listed_as_dropped_and_the_archiver_leaves_it_out(tmp_path: Path, kind: str) -> None:
    place = Place.at(tmp_path)
    append(tmp_path, [*made_up_run(), *made_up_run("run-b", updates=2)])
    archive(place)
    assert drop_run(place, "run-a").records == len(made_up_run())
    listed = ask(tmp_path, "runs", "--csv", "--all").stdout.splitlines()
    assert [line.split(",")[0] for line in listed[1:]] == ["run-b", "run-a"]
    assert listed[2].startswith("run-a,made up run-a,")
    assert ",dropped," in listed[2]
    # The log has all of it still: neither the next archiver nor a rebuild brings it back.
    append(tmp_path, made_up_run("run-c", updates=1))
    archive(place)
    assert (_records_of(place, "run-a"), _records_of(place, "run-c")) == (0, len(made_up_run(updates=1)))
    if kind == "file":
        rebuilt = ask(tmp_path, "archive", "--rebuild")
        assert rebuilt.exit_code == 0, rebuilt.output
        assert "dropped runs are not archived again: run-a" in rebuilt.output
    assert (_records_of(place, "run-a"), _records_of(place, "run-b")) == (0, len(made_up_run(updates=2)))
    # With the archive out of the way a new one has it again.
    lose_the_archive(tmp_path)
    archive(place)
    assert _records_of(place, "run-a") == len(made_up_run())


@FILE_OR_LONG
@pytest.mark.usefixtures("kind")
def test_whoever_asks_for_the_run_is_told(tmp_path: Path) -> None:
    place = Place.at(tmp_path)
    on_log(tmp_path, lambda log: record_run(log, "run-a", hosted=False))
    append(tmp_path, made_up_run("run-b"))
    archive(place)
    drop_run(place, "run-a", idle_s=0)
    (shelf,) = Site([place]).shelves.values()
    asks: list[Callable[[], object]] = [
        lambda: find_why(place, "run-a"),
        lambda: find_why(place, "run-a:update:1"),
        lambda: find_runs(place.archive, ["run-a"]),
        lambda: export_run(place.archive, "run-a", tmp_path / "out"),
        lambda: us.open_run("run-a", data=tmp_path),
        lambda: fork_run(place, CheckpointName("run-a", 0), {}),
        lambda: list(Replay(place, "run-a")),
        lambda: list(Replay(place, "run-a", source="archive")),
        lambda: shelf.run("run-a"),
        lambda: look_at_run(place, "run-a"),
    ]
    # First the log has the run still, then it has nothing at all of it.
    for expired in (False, True):
        if expired:
            expire(tmp_path)
        for question in asks:
            with pytest.raises(RunError, match=r"^run run-a was dropped from the archive on 20.* records$"):
                question()
        for command in ("verify", "why", "report", "train --resume"):
            result = ask(tmp_path, *command.split(), "run-a")
            assert isinstance(result.exception, UnstableStreamError), result.output
            assert "was dropped from the archive on" in str(result.exception)
        says = r"Dropped from it, with all that had ids in them: run-a\. List"
        with pytest.raises(ArchiveError, match=says):
            find_why(place, "fffffff")
        with pytest.raises(RunError, match="no run 'run-x'"):
            us.open_run("run-x", data=tmp_path)
        assert find_runs(place.archive, ["run-b"]) == ["run-b"]


@FILE_OR_LONG
@pytest.mark.usefixtures("kind")
def test_another_run_is_read_through_the_tiers_as_before(tmp_path: Path) -> None:
    """The dropped run had the first records of each partition, which must not look like missing ones."""
    place = Place.at(tmp_path)
    append(tmp_path, made_up_run())
    on_log(tmp_path, lambda log: record_run(log, OTHER, hosted=False))
    append(tmp_path, made_up_run("run-z"))
    archive(place)

    def looked_at() -> list[object]:
        run = us.open_run(OTHER, data=tmp_path)
        return [run.verify(games=False), run.audit(), list(Replay(place, OTHER))]

    before = looked_at()
    assert before[0].ok  # type: ignore[attr-defined]
    drop_run(place, "run-a")
    drop_run(place, "run-z")
    expire(tmp_path)
    assert looked_at() == before


@FILE_OR_LONG
@pytest.mark.usefixtures("kind")
def test_a_run_that_is_not_over_or_not_archived_is_refused(tmp_path: Path) -> None:
    place = Place.at(tmp_path)
    whole = made_up_run()
    assert isinstance(whole[-1], RunFinished)
    append(tmp_path, whole[:-1])
    archive(place)
    # What was recorded is years old, so by default the run counts as dead.
    with pytest.raises(RunError, match=r"run run-a has not ended, and .* if it was killed, wait so long"):
        drop_run(place, "run-a", idle_s=1e12)
    append(tmp_path, whole[-1:])
    says = r"is still being archived: the log has \S+\[\d\]@\d+, .*First: uns"
    with pytest.raises(ArchiveError, match=says):
        drop_run(place, "run-a")
    # What is not archived of others is no reason.
    archive(place)
    append(tmp_path, made_up_run("run-b"))
    assert drop_run(place, "run-a").records == len(whole)


@pytest.mark.parametrize("there", [False, True])
def test_it_is_told_that_the_log_of_the_run_was_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """A shared archive is found from everywhere, and its logs only where they are named."""
    monkeypatch.setenv(ARCHIVE_VARIABLE, f"delta:{tmp_path / 'shared'}")
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    append(home, made_up_run())
    archive(Place.at(home))
    assert not look_at_run(Place.at(home), "run-a").unasked_logs
    if there:
        append(elsewhere, made_up_run("run-b"))
    done = ask(elsewhere, "rm", "run-a", answer="n\n")
    (log_id,) = look_at_run(Place.at(elsewhere), "run-a").unasked_logs
    assert f"note: of its log {log_id} it is not known whether all of the run is archived" in done.output
    assert _records_of(Place.at(home), "run-a") == len(made_up_run())
