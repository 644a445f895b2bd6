"""What the pages show runs: every block of Python, and every command of ours is one that exists.

A block that cannot run here (it needs a GPU, a network, minutes) has ``<!-- not run: reason -->`` before it.
The other blocks run in a directory whose ``unstable-data`` holds the log and the archive of a small made-up
run. All blocks of a page are one script.
"""

import re
import runpy
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.archive.history import made_up_run
from tests.documented_code import Block, blocks_of, commands_in, script_of
from tests.places import append, archived
from unstable_stream.archive import query
from unstable_stream.ui.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = [block for page in PAGES for block in blocks_of(page, "bash", "console", "sh")]
# ``Any``: Typer publishes no types of the commands that it makes.
COMMAND: Any = typer.main.get_command(app)
(USAGE_ERROR,) = typer.BadParameter.__bases__


def check_command(arguments: list[str]) -> None:
    """Parse a command line as the program would, and run nothing.

    Raises:
        UsageError: there is no such command or option, or a value is missing.
    """
    command = COMMAND
    context = command.context_class(command, info_name="unstable-stream")
    # Only the program's own options, such as --version, could come before the command's name.
    while hasattr(command, "resolve_command") and arguments and not arguments[0].startswith("-"):
        name, command, arguments = command.resolve_command(context, arguments)
        context = command.context_class(command, info_name=name, parent=context)
    command.make_context(context.info_name, list(arguments), parent=context.parent)


def all_commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    if hasattr(command, "list_commands"):
        context = command.context_class(command)
        for each in command.list_commands(context):
            yield from all_commands(command.get_command(context, each), f"{name} {each}")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``unstable-data``: the log and the archive of a made-up run."""
    place = tmp_path_factory.mktemp("documented")
    data = place / "unstable-data"
    append(data, made_up_run())
    archived(data, made_up_run())
    return place


@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page)], ids=lambda page: page.name)
def test_python_in_pages_runs(page: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recorded)
    script = recorded / f"{page.stem}.py"
    script.write_text(script_of(page), encoding="utf-8")
    assert runpy.run_path(str(script))


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_commands_in_pages_exist(block: Block) -> None:
    for arguments in commands_in(block.code, block.language):
        check_command(arguments)


QUERIES = [
    (block, arguments[1])
    for block in SHELL
    for arguments in commands_in(block.code, block.language)
    if arguments[:1] == ["sql"] and not arguments[1].startswith("-") and ".parquet" not in arguments[1]
]


@pytest.mark.parametrize(("block", "sql"), QUERIES, ids=[str(block) for block, _ in QUERIES])
def test_queries_in_pages_can_be_asked(block: Block, sql: str, recorded: Path) -> None:
    assert query(recorded / "unstable-data" / "archive.duckdb", sql).columns


@pytest.mark.parametrize("command", list(all_commands(COMMAND, "unstable-stream")), ids=itemgetter(0))
def test_examples_in_help_can_be_typed(command: tuple[str, Any]) -> None:
    (_, parsed) = command
    shown = f"{parsed.help or ''}\n{parsed.epilog or ''}"
    examples = re.findall(r"^\s*(?:Example|Start with): (.*)$", shown, re.MULTILINE)
    assert examples or hasattr(parsed, "list_commands"), "a command shows an example in its help"
    for example in examples:
        found = commands_in(example)
        assert found
        for arguments in found:
            check_command(arguments)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["sqll", "SELECT 1"], "No such command 'sqll'"),
        (["sql", "SELECT 1", "--tabel"], "No such option"),
        (["log", "tial"], "No such command 'tial'"),
        (["export"], "Missing parameter: run"),
    ],
)
def test_a_wrong_command_is_found(line: list[str], says: str) -> None:
    with pytest.raises(USAGE_ERROR) as caught:
        check_command(line)
    assert says in str(caught.value)
