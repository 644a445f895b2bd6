"""Print rows: a table for people, CSV or JSON for programs; and show how far a call is that blocks.

Data goes to stdout, messages go to stderr.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from unstable_stream.api.output import cell_text, plain, plain_console, write_csv

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console

_TABLE_ROWS = 1000
_IN_MEMORY_BYTES = 16 * 1024 * 1024
_LONGEST_CELL = 200
_FOLD_AT = 24

CsvOption: TypeAlias = Annotated[bool, typer.Option("--csv", help="Print CSV (the default into a pipe).")]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print a JSON array of objects.")]
TableOption: TypeAlias = Annotated[
    bool, typer.Option("--table", help="Print a table (the default on a terminal).")
]


class Format(Enum):
    """The formats in which rows can be printed."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def pick_format(as_csv: bool, as_json: bool, as_table: bool) -> Format:
    """Return the format asked for; without a wish a table on a terminal and CSV elsewhere."""
    wishes = [
        wish
        for wish, asked in ((Format.CSV, as_csv), (Format.JSON, as_json), (Format.TABLE, as_table))
        if asked
    ]
    if len(wishes) > 1:
        raise typer.BadParameter(f"choose one of {', '.join('--' + wish.value for wish in wishes)}")
    if wishes:
        return wishes[0]
    return Format.TABLE if sys.stdout.isatty() else Format.CSV


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: Format) -> None:
    """Print a query's rows. ``Any``: what DuckDB makes of the columns' types."""
    take_rows(columns, rows, form)()


def print_objects(objects: Sequence["DataclassInstance"], form: Format, columns: Sequence[str] = ()) -> None:
    """Print dataclasses of one kind as rows: these fields of theirs, or all."""
    names = columns or [field.name for each in objects[:1] for field in fields(each)]
    print_rows(names, [[getattr(each, name) for name in names] for each in objects], form)


def take_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: Format) -> Callable[[], None]:
    """Read all rows, and return the function that prints them.

    Between the two, let go of the archive: whoever reads the output may take all day, and a run wants to
    write. However many rows, memory stays bounded. A statement without columns prints nothing.
    """
    if not columns:
        return lambda: None
    if form is Format.TABLE:
        shown: list[Sequence[Any]] = []
        count = 0
        for count, row in enumerate(rows, 1):
            if count <= _TABLE_ROWS:
                shown.append(row)
        return lambda: _print_table(columns, shown, count)
    with contextlib.ExitStack() as on_error:
        spool = on_error.enter_context(
            tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, "w+", encoding="utf-8", newline="")
        )
        if form is Format.JSON:
            _write_json(spool, columns, rows)
        else:
            write_csv(spool, columns, rows)
        on_error.pop_all()  # from here on it is closed when it has been printed

    def print_spool() -> None:
        with spool:
            spool.seek(0)
            if sys.stdout.isatty():
                sys.stdout.writelines(map(plain, spool))
            else:
                shutil.copyfileobj(spool, sys.stdout)

    return print_spool


def _write_json(file: IO[str], columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    import msgspec

    between = "[\n"
    for row in rows:
        body = msgspec.json.encode(dict(zip(columns, row, strict=True)), enc_hook=str).decode()
        file.write(between + body)
        between = ",\n"
    file.write("[\n]\n" if between == "[\n" else "\n]\n")


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], count: int) -> None:

    cells = [[_table_cell(value) for value in row] for row in rows]
    numeric = [any(isinstance(row[n], int | float) for row in rows) for n in range(len(columns))]
    longest = [
        max(len(line) for text in (name, *(row[n] for row in cells)) for line in text.splitlines() or [""])
        for n, name in enumerate(columns)
    ]
    # Text may be folded, numbers and names may not.
    narrowest = [
        width if number else max(len(name), min(width, _FOLD_AT))
        for width, number, name in zip(longest, numeric, columns, strict=True)
    ]
    gaps = 2 * len(columns)
    console = plain_console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = sum(longest) + gaps
    if sum(narrowest) + gaps <= console.width:
        _print_rows_as_lines(console, columns, cells, numeric, narrowest)
    else:
        _print_rows_as_blocks(console, columns, cells)
    talk = plain_console(stderr=True, highlight=False)
    if count > len(rows):
        talk.print(f"{len(rows):,} of {count:,} rows shown; --csv or --json prints all.", style="dim")
    elif not rows:
        talk.print("no rows", style="dim")


def _print_rows_as_lines(
    console: "Console",
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    narrowest: Sequence[int],
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, number, width in zip(columns, numeric, narrowest, strict=True):
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_rows_as_blocks(console: "Console", columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print a row that is wider than the terminal as one line per column."""
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    for number, row in enumerate(cells, 1):
        block = Table.grid(padding=(0, 2))
        block.add_column(style="bold", no_wrap=True)
        block.add_column(overflow="fold")
        for name, cell in zip(columns, row, strict=True):
            block.add_row(Text(name), Text(cell))
        console.print(Rule(Text(f"row {number}"), align="left", style="dim"))
        console.print(block)


def _table_cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    text = plain(cell_text(value))
    return text if len(text) <= _LONGEST_CELL else text[: _LONGEST_CELL - 1] + "…"


@dataclass(frozen=True)
class Saying:
    """Rich shows what ``say`` returns, each time that it draws."""

    say: Callable[[], str]

    def __rich__(self) -> str:
        return self.say()


@contextmanager
def progress_bar(*, shown: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Show on standard error, if it is a terminal, what is done and how much; it goes away at the end."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = plain_console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    disable = not shown or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=disable) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


@contextmanager
def records_read(*, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show how many records are read, as :func:`progress_bar`."""
    with progress_bar(shown=shown) as show:
        yield lambda read, total: show("records read", read, total)
