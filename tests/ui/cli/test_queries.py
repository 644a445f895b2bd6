"""``sql``, ``archive``, ``export``, ``runs`` and ``games`` on the made-up history, as a user calls them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec
import pytest

from tests.archive.history import made_up_run, stored
from tests.archive.many_games import multiply_games
from tests.places import append, archived, ask
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.errors import ArchiveError, EventLogError, UnstableStreamError
from unstable_stream.events import Event, GameOutcome, GameStarted, Trajectory, game_id
from unstable_stream.events.games import Action
from unstable_stream.history.views.transcript import load_transcript, new_part

pytestmark = pytest.mark.longer

_TAUNT = "[bold]I win[/bold] \x1b[31m now [/nonsense] " + "and on " * 40 + "end"


def _with_taunt(event: Event) -> Event:
    """Let evaluation game 3 have an invalid move, and a completion that tries to be markup."""
    if getattr(event, "game_id", None) != game_id("run-a", "eval", 3):
        return event
    if isinstance(event, Trajectory):
        turn = msgspec.structs.replace(event.turns[0], completion=_TAUNT, valid=False, finish_reason="length")
        return msgspec.structs.replace(event, turns=(turn, *event.turns[1:]))
    if isinstance(event, GameOutcome):
        actions = tuple(Action(a.seat, a.action, i != 1) for i, a in enumerate(event.actions))
        return msgspec.structs.replace(
            event, actions=actions, invalid_seat=1, reason="invalid-move", reason_text="Not [a] legal move."
        )
    return event


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    events = [_with_taunt(event) for event in made_up_run()]
    others = made_up_run("run-b", updates=2, finished=False)
    return archived(tmp_path_factory.mktemp("data"), events + others).parent


def _output(data: Path, *arguments: str, width: int = 120) -> str:
    result = ask(data, *arguments, width=width)
    assert result.exit_code == 0, result.output
    return result.stdout


def _error(data: Path, *arguments: str) -> UnstableStreamError:
    result = ask(data, *arguments)
    assert isinstance(result.exception, UnstableStreamError), result.output
    assert "\n" not in str(result.exception)
    return result.exception


def _ids(output: str) -> Sequence[tuple[str, str, int]]:
    return [(row["run"], row["split"], row["number"]) for row in json.loads(output)]


def test_sql_prints_csv_into_a_pipe(data: Path) -> None:
    sql = "SELECT update, steps FROM completion_lengths WHERE run_id = 'run-b' ORDER BY 1"
    assert _output(data, "sql", sql) == "update,steps\n1,5\n2,7\n"


def test_sql_json_keeps_types(data: Path) -> None:
    sql = "SELECT started_at, config, NULL AS no FROM runs ORDER BY run_id LIMIT 1"
    row = {"started_at": "2023-11-14T22:13:20", "config": '{"learner":{"iterations":6}}', "no": None}
    assert json.loads(_output(data, "sql", sql, "--json")) == [row]


def test_sql_table_shows_markup_literally_and_folds_it(data: Path) -> None:
    output = _output(data, "sql", "SELECT seat, completion FROM turns WHERE NOT valid", "--table", width=60)
    assert "[bold]I win[/bold]" in output
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 60


def test_a_row_too_wide_for_the_terminal_is_shown_as_a_block(data: Path) -> None:
    output = _output(data, "sql", "SELECT * FROM games LIMIT 2", "--table", width=70)
    lines = output.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("row")] == [["row", "1"], ["row", "2"]]
    assert sum(line.startswith("evaluated_uid ") for line in lines) == 2


def test_sql_reads_files_and_stdin(data: Path, tmp_path: Path) -> None:
    question = tmp_path / "question.sql"
    question.write_text("SELECT 6 * 7 AS answer", encoding="utf-8")
    assert _output(data, "sql", "--file", str(question)) == "answer\n42\n"
    assert ask(data, "sql", "-", answer="SELECT 1 AS one").stdout == "one\n1\n"


def test_sql_changes_nothing_unless_told(data: Path, tmp_path: Path) -> None:
    (tmp_path / "archive.duckdb").write_bytes((data / "archive.duckdb").read_bytes())
    before = _output(tmp_path, "sql", "SELECT count(*) AS n FROM metrics")
    assert before != "n\n0\n"
    assert "Add --write" in str(_error(tmp_path, "sql", "DELETE FROM metrics"))
    assert _output(tmp_path, "sql", "SELECT count(*) AS n FROM metrics") == before
    _output(tmp_path, "sql", "DELETE FROM metrics", "--write")
    assert _output(tmp_path, "sql", "SELECT count(*) AS n FROM metrics") == "n\n0\n"


def test_large_results_are_printed_whole_but_not_as_a_table(data: Path) -> None:
    many = "SELECT i, repeat('y', 100) AS y FROM range(200_000) AS t(i)"
    lines = _output(data, "sql", many).splitlines()
    assert (len(lines), lines[0], lines[-1][:7]) == (200_001, "i,y", "199999,")
    rows = json.loads(_output(data, "sql", many, "--json"))
    assert [row["i"] for row in rows] == list(range(200_000))
    assert json.loads(_output(data, "sql", "SELECT 1 WHERE false", "--json")) == []
    table = ask(data, "sql", many, "--table")
    assert len(table.stdout.splitlines()) == 1001
    assert "1,000 of 200,000 rows shown; --csv or --json prints all." in table.stderr


def test_the_archive_is_free_while_the_answer_is_printed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "archive.duckdb"
    path.write_bytes((data / "archive.duckdb").read_bytes())
    written = []

    def slow_reader(source: IO[str], target: object) -> None:
        monkeypatch.setattr("unstable_stream.archive.store.PATIENCE_S", 0.0)
        with ArchiveWriter(path, "another log") as writer:
            written.append(writer.write(stored(made_up_run("run-c", updates=1))).records)

    monkeypatch.setattr("unstable_stream.ui.cli.output.shutil.copyfileobj", slow_reader)
    _output(tmp_path, "sql", "SELECT * FROM events")
    assert written == [len(made_up_run("run-c", updates=1))]


def test_sql_lists_what_there_is(data: Path) -> None:
    tables = _output(data, "sql", "--tables")
    assert _output(data, "sql") == tables
    assert "win_rates (view): How each checkpoint did" in tables
    assert "update_steps (table): " in tables
    for statement in _output(data, "sql", "--examples").split(";\n\n"):
        if statement.strip():
            answer = ask(data, "sql", "-", answer=statement)
            assert answer.exit_code == 0, answer.output


def test_sql_errors_say_what_to_do(data: Path, tmp_path: Path) -> None:
    mistake = str(_error(data, "sql", "SELECT * FROM game"))
    assert mistake == "line 1, column 15: Table with name game does not exist! Did you mean games?"
    missing = _error(tmp_path, "sql", "SELECT 1")
    assert isinstance(missing, ArchiveError)
    assert "unstable-stream archive" in str(missing)
    assert "give one query" in ask(data, "sql", "SELECT 1", "--file", "question.sql").output
    assert "cannot read" in ask(data, "sql", "--file", str(tmp_path / "none.sql")).output
    assert "choose one of --csv, --json" in ask(data, "sql", "SELECT 1", "--csv", "--json").output


def test_archive_catches_up_with_the_log_and_is_rebuilt(tmp_path: Path) -> None:
    assert isinstance(_error(tmp_path, "archive"), EventLogError)
    append(tmp_path, made_up_run(updates=1))
    count = len(made_up_run(updates=1))
    assert f"{count} records archived, 0 of them" in ask(tmp_path, "archive").stderr
    assert "0 records archived" in ask(tmp_path, "archive").stderr
    _output(tmp_path, "sql", "DELETE FROM steps", "--write")
    assert f"{count} records archived" in ask(tmp_path, "archive", "--rebuild").stderr
    assert _output(tmp_path, "sql", "SELECT count(*) AS n FROM steps") == "n\n6\n"
    assert query(tmp_path / "archive.duckdb.old", "SELECT count(*) FROM steps").rows == [(0,)]
    assert "move it away" in str(_error(tmp_path, "archive", "--rebuild"))


def test_games_are_listed_latest_first(data: Path) -> None:
    output = _output(data, "games", "--json", "--run", "run-b", "--limit", "3")
    assert _ids(output) == [("run-b", "train", 9), ("run-b", "train", 8), ("run-b", "eval", 5)]
    winners = [(row["winner"], row["reason"]) for row in json.loads(output)]
    assert winners == [("abandoned", "engine failed"), ("in-flight", None), ("random", "win")]


def test_games_table_has_ids_that_show_understands(data: Path) -> None:
    output = _output(data, "games", "--table", "--invalid", width=160)
    (short,) = [line.split()[0] for line in output.splitlines()[1:]]
    assert len(short) == 8
    assert game_id("run-a", "eval", 3) in _output(data, "games", "show", short)


def test_show_does_not_obey_what_models_write(data: Path) -> None:
    output = _output(data, "games", "show", game_id("run-a", "eval", 3), width=60)
    assert "[bold]I win[/bold] \ufffd[31m now [/nonsense]" in output
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 60
    assert "[1]  refused: invalid move  cut at 4 tokens" in " ".join(output.split("\n"))
    assert "seat 1 ended it with an invalid" in output
    assert "Not [a] legal move." in output


def test_show_of_an_unfinished_game_and_of_none(data: Path) -> None:
    output = _output(data, "games", "show", game_id("run-a", "train", 25))
    assert "abandoned: engine failed" in output
    assert "ckpt-000006" in output
    assert "no game's id starts with 'xyz'" in str(_error(data, "games", "show", "xyz"))
    assert "several games' ids start with ''" in str(_error(data, "games", "show", ""))


def test_a_whole_id_names_its_game_though_another_begins_with_it(tmp_path: Path) -> None:
    archive = archived(tmp_path, made_up_run(updates=1))
    multiply_games(archive, 2)
    assert load_transcript(archive, game_id("run-a", "train", 0)).game_id == game_id("run-a", "train", 0)


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "Rules.\n\nBoard A", "Rules.\n\nBoard A"),
        ("Rules.\n\nYou moved.", "Rules.\n\nYou moved.\nThey moved.", "They moved."),
        ("Rules.\n\nX _\n_ _", "Rules.\n\nX _\n_ O", "X _\n_ O"),
        ("Same.", "Same.", "Same."),
        ("Old.", "New.", "New."),
        ("A\n\nB", "A", "A"),
    ],
)
def test_only_what_is_new_is_shown(before: str, now: str, new: str) -> None:
    assert new_part(before, now) == new


def test_export_tells_what_it_wrote(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = ["export", "run-b", "-o", str(out), "--tables", "seats, steps"]
    result = ask(data, *call)
    # 14 games of two seats; 4 + 4 games of policies 0 and 1, with 1, 1, 2, 2 and 3, 1, 2, 2 turns.
    assert result.stderr.startswith("run run-b: 42 rows of 2 tables, 0.0 MB, in "), result.output
    assert "--force" in str(_error(data, *call))
    assert "in this archive" in str(_error(data, "export", "run-z", "-o", str(out / "z")))


def test_export_writes_the_batches_of_updates(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "batches"
    call = ["export", "run-b", "-o", str(out), "--batches"]
    assert ask(data, *call, "csv").stderr.startswith("2 batches in ")
    assert sorted(path.name for path in out.iterdir()) == ["train_data_step_1.csv", "train_data_step_2.csv"]
    assert "'xlsx' is not one of 'csv', 'parquet'" in ask(data, *call, "xlsx").output


def test_started_games_have_seats(data: Path) -> None:
    starts = [event for event in made_up_run() if isinstance(event, GameStarted)]
    sql = "SELECT count(*) AS n FROM planned_seats WHERE run_id = 'run-a'"
    assert _output(data, "sql", sql) == f"n\n{2 * len(starts)}\n"
