"""Runs compared by a call and by the command: files, and what cannot be compared."""

import csv
import json
from pathlib import Path

import pytest

import unstable_stream as us
from tests.archive.history import made_up_run
from tests.builders import made
from tests.history.views.conftest import CONTROLS
from tests.places import archived, ask
from tests.runs.sweep_events import SWEEP, sweep_events
from unstable_stream.errors import ConfigError, ReportError, RunError
from unstable_stream.events import RunStarted


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("compared")
    archived(data, [*sweep_events(), *made_up_run("run-a", updates=2), *made_up_run("run-b", updates=1)])
    return data


def test_the_command_shows_groups_and_opponents(data: Path) -> None:
    done = ask(data, "compare", SWEEP, width=130)
    assert done.exit_code == 0, done.output
    (best,) = [line for line in done.output.splitlines() if "learning_rate=0.001" in line]
    assert best.split()[:4] == ["learning_rate=0.001", "3", "0", "0"]
    assert best.split()[-4:] == ["random-legal", "73.3%", "(44.6–100.0)", "baseline"]
    assert "tokens" not in done.output, "no run has any"
    assert "arXiv:2108.13264" in done.output
    narrow = ask(data, "compare", SWEEP, width=80)
    best, spent = [line for line in narrow.output.splitlines() if "learning_rate=0.001" in line]
    assert best.split() == ["learning_rate=0.001", "3", "random-legal", "73.3%", "(44.6–100.0)", "baseline"]
    assert spent.split()[:4] == ["learning_rate=0.001", "3", "0", "0"], "a second table"


def test_json_csv_and_picture(data: Path, tmp_path: Path) -> None:
    table, picture = tmp_path / "runs.csv", tmp_path / "curves.svg"
    files = ("--csv", str(table), "--picture", str(picture), "--x", "games")
    done = ask(data, "compare", "run-a", "run-b", "demo-0.001-0", "--baseline", "run-b", "--json", *files)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["baseline"] == "made up run-b"
    assert [row["group"] for row in told["groups"]] == ["made up run-a", "made up run-b", "demo"]
    (tokens,) = us.sql("SELECT sum(completion_tokens) FROM trajectories WHERE run_id = 'run-a'", data=data)[0]
    spent = {"updates": 2, "games": 8, "tokens": tokens, "seconds": 15, "cpu_seconds": None}
    assert told["groups"][0]["spent"] == spent
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert [(row["run_id"], row["update"]) for row in rows] == [
        *[("run-a", str(update)) for update in range(3)],
        *[("run-b", str(update)) for update in range(2)],
        *[("demo-0.001-0", str(update)) for update in range(2)],
    ]
    assert (rows[1]["games_so_far"], rows[1]["games"], rows[1]["wins"]) == ("4", "2", "1")
    assert "training games played" in picture.read_text(encoding="utf-8")


def test_one_run_and_the_newest(data: Path) -> None:
    assert [row.group for row in us.compare("run-b", data=data).table.groups] == ["made up run-b"]
    assert len(us.compare(data=data).table.groups) == 1


def test_opponents_are_chosen(data: Path) -> None:
    table = us.compare("run-a", "demo-0.001-0", opponents=["random-legal"], data=data).table
    assert [[result.opponent for result in row.results] for row in table.groups] == [[], ["random-legal"]]
    assert "run-a has no evaluation" in table.sentences


def test_what_cannot_be_compared_is_refused_in_a_line(data: Path, tmp_path: Path) -> None:
    one = "demo-0.001-0"
    for arguments, says in {
        ("nothing",): "no run 'nothing'",
        (one, "--baseline", "nothing"): "expected a group or a run that is compared",
        (one, "--by", "learning_rat"): "did you mean learning_rate?",
        (one, "--opponent", "luck"): "not met in an evaluation, in which they met random-legal",
        (one, "--picture", "curves.pdf"): "only SVG can be drawn: name the picture curves.svg",
        (one, "--picture", str(tmp_path / "no" / "curves.svg")): "cannot write",
    }.items():
        done = ask(data, "compare", *arguments)
        assert isinstance(done.exception, ConfigError | RunError | ReportError), arguments
        assert says in str(done.exception)
    with pytest.raises(ConfigError, match="no run has it; did you mean"):
        us.compare(one, data=data).chart(metric="win_rat")


def test_names_do_not_move_the_terminal(tmp_path: Path) -> None:
    archived(
        tmp_path,
        [made(RunStarted, run_id="one", name=CONTROLS), made(RunStarted, run_id="other", name="other")],
    )
    done = ask(tmp_path, "compare", "one", "other")
    assert done.exit_code == 0, done.output
    assert not set(done.output) & set("\x1b\x07\x9b\x08\r")
