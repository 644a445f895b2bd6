"""What records and models say reaches a terminal as text, whatever letters the terminal has."""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.table import Column, Table
from rich.text import Text

from tests.archive.history import made_up_run
from tests.places import append, archived
from tests.processes import completed
from tests.services.tracking.test_terminal_interface import CONFIG
from unstable_stream.console import get_logger, plain, plain_console
from unstable_stream.events import Event, GameStarted, decode_event, encode_event
from unstable_stream.runs.run_view import RunView
from unstable_stream.services.tracking.terminal_interface import render, render_runs
from unstable_stream.ui.cli.output import Format, print_rows

EVIL = "\x1b[2J\x1b]0;name\x07\x9b1m\x85\u202eü[/]中"
_COMMANDS = """
import json, sys
from unstable_stream.ui.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["unstable-stream", *arguments]
    try:
        main()
    except SystemExit as end:
        print("status", end.code)
"""


def unprintable(text: str) -> set[str]:
    return {letter for letter in text if not letter.isprintable()} - {"\n"}


def printed(show: Callable[[], object]) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        show()
    return text.getvalue()


def test_text_loses_what_a_terminal_would_obey_and_nothing_else() -> None:
    assert plain("ü中\t\n🎲 [/]") == "ü中\t\n🎲 [/]"
    assert unprintable(plain(EVIL + "\r\0\x08\u2028")) == set()


def test_a_console_shows_text_of_any_depth_as_it_is() -> None:
    table = Table(Column(Text(EVIL)), Column())
    table.add_row(Text(EVIL), Text(EVIL, style="bold"))
    found = printed(lambda: plain_console(width=200).print(table, Text(EVIL), "[bold]styled[/]"))
    assert unprintable(found) == set()
    assert found.count("[/]中") == 4
    assert "styled" in found


def test_a_log_line_and_the_live_views_show_names_as_text() -> None:
    view = RunView(f"run{EVIL}", CONFIG)
    for show in (
        lambda: get_logger("somewhere").warning("quarantined", run=EVIL, reason=f"two\x1b[1m words {EVIL}"),
        lambda: plain_console(width=200).print(render(view, 1.0), render_runs([view])),
    ):
        found = printed(show)
        assert "[2J" in found
        assert unprintable(found) == set()


def _renamed(event: Event) -> Event:
    """Let a run, its models and whatever was said have names that a terminal would obey."""
    text = encode_event(event).decode()
    for name in ("run-a", "random", "ckpt-000001", "made up ", "SimpleTak-v0-train"):
        text = text.replace(name, name + json.dumps(EVIL)[1:-1])
    return decode_event(text.encode())


def test_commands_print_names_as_text_on_a_terminal_that_has_only_ascii(tmp_path: Path) -> None:
    events = [_renamed(event) for event in made_up_run(updates=2)]
    append(tmp_path / "unstable-data", events)
    archived(tmp_path / "unstable-data", events)
    game = next(event.game_id for event in events if isinstance(event, GameStarted))
    commands = [
        ("runs", "--table"),
        ("runs", "--table", "--log", "local"),
        ("games", "--table", "--limit", "3"),
        ("games", "show", game, "--prompts"),
        ("why", "--update", "1"),
        ("why", game),
        ("log", "tail", "trajectories", "-n", "3"),
        ("log", "tail", "runs", "--json"),
        ("audit", "run-a"),
        ("audit", "run-b"),
        ("games", "--model", EVIL, "--run", f"none{EVIL}"),
        ("prune", "--dry-run"),
    ]
    ascii = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1", "COLUMNS": "120"}
    program = (sys.executable, "-c", _COMMANDS, json.dumps(commands))
    done = completed(*program, cwd=tmp_path, env=ascii, encoding="ascii")
    assert done.returncode == 0, done.stderr
    found = done.stdout + done.stderr
    assert unprintable(found) == set()
    assert "Traceback" not in found
    assert "\\xfc" in found
    assert "no run 'run-b' in this log; known runs: run-a\\ufffd[2J" in found


@pytest.mark.parametrize("on_terminal", [False, True])
def test_rows_for_programs_are_exact_unless_a_terminal_shows_them(
    on_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Output(io.StringIO):
        def isatty(self) -> bool:
            return on_terminal

    monkeypatch.setattr(sys, "stdout", shown := Output())
    print_rows(["name"], [[EVIL]], Format.CSV)
    assert (EVIL in shown.getvalue()) is not on_terminal
