"""All files of a run are in its data directory, whatever its id is, and the archive can open its path."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import unstable_stream as us
from tests.archive.history import made_up_run
from tests.places import append
from unstable_stream.api.backup import back_up
from unstable_stream.api.place import Place
from unstable_stream.api.replaying import track_run
from unstable_stream.api.serving import archive
from unstable_stream.api.settings import make_config
from unstable_stream.api.what_if import rerate_run
from unstable_stream.errors import ConfigError
from unstable_stream.events import Event
from unstable_stream.runs.data_dir import DataDir

OUTSIDE = "../../outside"
FILES: list[Callable[[DataDir, str], Path]] = [
    DataDir.checkpoints,
    DataDir.service_logs,
    DataDir.tracking,
    DataDir.what_if,
    DataDir.own_code,
]


def recorded(run_id: str) -> list[Event]:
    config = make_config({"model": "tiny-player", "train_envs": ["SimpleTak-v0-train"]})
    started, *others = made_up_run(run_id)
    return [msgspec.structs.replace(started, config=config.model_dump(mode="json")), *others]


@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize("run_id", [OUTSIDE, "..", "/etc/x", "a/b", "", ".git", "a\nb", "\x1b[2J", "a" * 300])
def test_an_id_that_is_no_file_name_has_no_files(files: Callable[[DataDir, str], Path], run_id: str) -> None:
    with pytest.raises(ConfigError, match=r"^run id .* cannot be part of a file name"):
        files(DataDir(), run_id)
    assert files(DataDir(Path("data")), "run-a").is_relative_to("data")


def test_what_a_run_of_a_foreign_id_would_write_or_replace_outside_is_refused(tmp_path: Path) -> None:
    place = Place.at(tmp_path / "somewhere" / "data")
    append(place.root, recorded(OUTSIDE))
    kept = tmp_path / "somewhere" / "outside" / "mine"
    kept.mkdir(parents=True)
    (kept / "file").touch()
    for write in (
        lambda: rerate_run(place, OUTSIDE, label="mine", replace=True),
        lambda: track_run(place, OUTSIDE, "jsonl"),
        lambda: track_run(place, OUTSIDE, "jsonl", tmp_path / "somewhere" / "curves" / "deep"),
    ):
        with pytest.raises(ConfigError, match=r"run id '../../outside' cannot be part of a file name"):
            write()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and place.root not in path.parents]
    assert files == [kept / "file"]


@pytest.mark.parametrize(
    "named", ["/x/../ckpt-000001-ab", "/x/run-a/..", "/x/.hidden/ckpt", "/", "ckpt", "/x/run-a/l"]
)
def test_a_checkpoint_elsewhere_is_none_of_this_directory(named: str, tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    (data.checkpoints("run-a") / "ckpt").mkdir(parents=True)
    (data.root / "ckpt-000001-ab").mkdir()
    (data.checkpoints("run-a") / "l").symlink_to(tmp_path)
    assert data.own_checkpoint(named) is None
    assert data.located(named) == named


def test_a_checkpoint_of_a_directory_that_was_moved_is_in_this_one(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    (data.checkpoints("run-a") / "ckpt-1").mkdir(parents=True)
    assert data.located("/gone/checkpoints/run-a/ckpt-1") == str(data.checkpoints("run-a") / "ckpt-1")
    assert data.located("s3://bucket/run-a/ckpt-1") == "s3://bucket/run-a/ckpt-1"


def test_a_checkpoint_at_no_address_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="checkpoint: 'http://host/ckpt' is in no kind of store"):
        DataDir().located("http://host/ckpt")


@pytest.mark.parametrize("name", ["what?now", "back\\slash", "no\udcffutf8"])
def test_a_path_that_the_archive_would_take_for_another_is_refused_before_anything_is_written(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"^data directory .* without"):
        DataDir(tmp_path / name)
    with pytest.raises(ConfigError, match=r"^data directory"):
        us.list_runs(data=tmp_path / name / "below")
    assert list(tmp_path.iterdir()) == []


def test_any_other_path_holds_log_archive_sets_and_backups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = Place.at("mysql:a #%25;'\"$HOME ~é中\n[b]*{c}\x1b")
    append(place.root, recorded("run-a"))
    (place.root / "sibling").mkdir()
    archive(place)
    assert len(us.sql("SELECT DISTINCT run_id FROM events", data=place.root).rows()) == 1
    rated, stored = rerate_run(place, "run-a", label="mine")
    assert rated.rated
    assert stored is not None
    assert stored.is_relative_to(place.root)
    copy = back_up(place.root, place.root.with_name("copy #;'[*]"))
    assert [run.run_id for run in us.list_runs(data=copy.path)] == ["run-a"]
