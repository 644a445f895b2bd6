"""Labelled sets appear whole or not at all; outcomes come out of the archive game by game, in order."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.archive.history import made_up_run, stored
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.archive.game_columns import Coded, archived_parents, archived_seats
from unstable_stream.archive.what_if import open_set, set_directory
from unstable_stream.errors import ArchiveError, ConfigError
from unstable_stream.events import GameOutcome

SCHEMA = {"name": "VARCHAR", "value": "DOUBLE"}


def test_a_set_is_there_when_it_is_whole(tmp_path: Path) -> None:
    directory = set_directory(tmp_path / "run-a", "elo-k=16")
    with open_set(directory) as made:
        made.about.update(system="elo")
        coded = Coded(np.array([1, 0], dtype=np.int32), ["u", "v"])
        made.write("ratings", SCHEMA, {"name": ["x", "y"], "value": [1.0, 2.0]})
        made.write("ratings", SCHEMA, {"name": coded, "value": [3.0, 4.0]})
        assert not directory.exists()
        made.finish_tables()
        assert made.query("SELECT sum(value) FROM ratings").rows == [(10.0,)]
    assert json.loads((directory / "about.json").read_text()) == {"system": "elo"}
    # As an analyst would ask, next to the archive's own tables.
    archive = tmp_path / "archive.duckdb"
    with ArchiveWriter(archive) as writer:
        writer.write([])
    rows = query(archive, f"SELECT name, value FROM '{directory}/ratings.parquet'", files=True).rows
    assert rows == [("x", 1.0), ("y", 2.0), ("v", 3.0), ("u", 4.0)]
    assert [path.name for path in directory.parent.iterdir()] == ["elo-k=16"]


def test_a_set_that_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = set_directory(tmp_path / "run-a", "half")

    def fail_half_way() -> None:
        with open_set(directory) as made:
            made.write("ratings", SCHEMA, {"name": ["x"], "value": [1.0]})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert list(directory.parent.iterdir()) == []


def test_a_label_is_used_once_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    directory = set_directory(tmp_path / "run-a", "mine")
    for label in ("first", "second"):
        with open_set(directory, replace=label == "second") as made:
            made.about["which"] = label
            made.write(label, SCHEMA, {"name": [], "value": []})
    assert json.loads((directory / "about.json").read_text()) == {"which": "second"}
    assert not (directory / "first.parquet").exists(), "nothing is left of the one replaced"
    with pytest.raises(ArchiveError, match=r"already.*--label.*--force"), open_set(directory):
        pass
    assert json.loads((directory / "about.json").read_text()) == {"which": "second"}


def test_a_set_without_a_place_is_only_asked(tmp_path: Path) -> None:
    with open_set(None) as made:
        made.write("t", SCHEMA, {"name": ["x"], "value": [1.5]})
        made.finish_tables()
        assert made.query("FROM t").dicts() == [{"name": "x", "value": 1.5}]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", ["", "..", "a/b", ".hidden", "-x", "a b"])
def test_a_label_that_is_no_file_name_is_refused(tmp_path: Path, label: str) -> None:
    with pytest.raises(ConfigError, match="expected letters, digits"):
        set_directory(tmp_path / "run-a", label)


def test_outcomes_come_out_game_by_game_in_order(tmp_path: Path) -> None:
    path = tmp_path / "archive.duckdb"
    events = made_up_run("run-a", updates=3)
    with ArchiveWriter(path) as writer:
        writer.write(stored([*events, *made_up_run("run-b", updates=1)]))
    columns = archived_seats(path, "run-a")
    outcomes = [event for event in events if isinstance(event, GameOutcome)]
    seats = [seat for outcome in outcomes for seat in outcome.seats]
    envs, models = columns.envs, columns.models
    assert columns.game_ids.to_pylist() == [outcome.game_id for outcome in outcomes]
    assert np.diff(columns.starts).tolist() == [len(outcome.seats) for outcome in outcomes]
    assert [envs.values[code] for code in envs.codes] == [outcome.env_id for outcome in outcomes]
    assert [models.values[code] for code in models.codes] == [seat.model_uid for seat in seats]
    assert [columns.versions[code] for code in models.codes] == [seat.policy_version for seat in seats]
    assert columns.ranks.tolist() == [seat.rank for seat in seats]
    parents = {f"ckpt-{number:06d}": f"ckpt-{number - 1:06d}" if number else None for number in range(4)}
    assert archived_parents(path, "run-a") == parents
    assert (len(archived_seats(path, "run-z").game_ids), len(archived_seats(path, "run-z").starts)) == (0, 1)
