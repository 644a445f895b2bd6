"""The list of runs: what it leaves out, finds and sorts, and that it fits a terminal."""

import csv
from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.places import append, ask
from unstable_stream.api.place import Place
from unstable_stream.api.serving import archive
from unstable_stream.events import Event, RunStarted

LONG = "quickstart-20261128-095352-8510"


def _run(run_id: str, later_ms: int, updates: int = 1, **config: object) -> list[Event]:
    began, *rest = made_up_run(run_id, updates=updates)
    assert isinstance(began, RunStarted)
    config = {**began.config, **config}
    moment = began.occurred_at_ms + later_ms
    return [msgspec.structs.replace(began, occurred_at_ms=moment, config=config), *rest]


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("listed")
    append(data, _run(LONG, 0, updates=2, note="Half the rate,\nagainst collapse of long games"))
    append(data, _run("short", 1000))
    append(data, _run("eval-short", 2000, learner={"iterations": 0}))
    archive(Place.at(data))
    return data


def _ids(data: Path, *arguments: str) -> list[str]:
    done = ask(data, "runs", "--csv", *arguments)
    assert done.exit_code == 0, done.output
    return [row["run"] for row in csv.DictReader(done.stdout.splitlines())]


@pytest.mark.parametrize("source", [[], ["--log", "local"]])
def test_words_find_runs_and_those_that_do_not_train_are_left_out(listed: Path, source: list[str]) -> None:
    assert _ids(listed, *source) == ["short", LONG]
    assert _ids(listed, "--all", *source) == ["eval-short", "short", LONG]
    assert _ids(listed, "--all", "--limit", "1", *source) == ["eval-short"]
    assert _ids(listed, "--sort", "updates", *source) == [LONG, "short"]
    assert _ids(listed, "COLLAPSE", "half", *source) == [LONG]
    assert _ids(listed, "completed", "half", "rated", *source) == []


def test_the_table_fits_eighty_columns_and_has_the_note(listed: Path) -> None:
    done = ask(listed, "runs", "--table", width=80)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["#", "run", "state", "games", "updates", "won", "%"]
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:3] == ["2", "short", "completed"]
    # One of two games of the latest checkpoint was won; whom of, on a line of its own.
    assert lines[1].split()[5:] == ["50", "(9-91)"]
    assert lines[2].split() == ["random"]
    assert lines[3].split()[:2] == ["1", LONG]
    assert "completed" in lines[3]
    assert "against collapse" in done.stdout
    assert "1 that do not train, or were dropped, are not shown: --all" in done.stderr


def test_programs_learn_whom_the_win_rate_is_against(listed: Path) -> None:
    (row,) = csv.DictReader(ask(listed, "runs", "short", "--csv").stdout.splitlines())
    assert (row["win_rate"], row["opponent"], row["env_id"]) == ("0.5", "random", "TicTacToe-v0-train")
    assert float(row["win_rate_low"]) == pytest.approx(0.0945, abs=1e-4)
    assert float(row["win_rate_high"]) == pytest.approx(0.9055, abs=1e-4)
