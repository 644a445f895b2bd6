"""``unstable-stream sql``: ask the archive; ``unstable-stream archive``: bring it up to date with the log."""

import asyncio
import sys
from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption
from unstable_stream.cli.query_output import CsvOption, JsonOption, TableOption, pick_format, print_rows

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("sql", help=_sql.__doc__)(_sql)
    app.command("archive", help=_archive.__doc__)(_archive)


def _sql(
    statement: str | None = typer.Argument(None, metavar="SQL", help="The query; '-' reads it from stdin."),
    data: DataOption = Path("unstable-data"),
    file: Path | None = typer.Option(None, "--file", "-f", help="Read the query from a file."),
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
    tables: bool = typer.Option(False, "--tables", help="List tables and views with their columns."),
    examples: bool = typer.Option(False, "--examples", help="Print useful queries."),
    write: bool = typer.Option(False, "--write", help="Allow changes to the archive."),
) -> None:
    """Query every game, turn, step, rating and update, also while a run trains.

    Example: unstable-stream sql "SELECT policy_version, win_rate FROM learning_curve ORDER BY 1"
    """
    if tables:
        _print_relations()
    elif examples:
        _print_examples()
    else:
        from unstable_stream.archive import query

        form = pick_format(as_csv, as_json, as_table)
        result = query(data / "archive.duckdb", _statement(statement, file), write=write)
        if result.columns:
            print_rows(result.columns, result.rows, form)


def _statement(statement: str | None, file: Path | None) -> str:
    if (statement is None) == (file is None):
        raise typer.BadParameter(
            'give one query, e.g. unstable-stream sql "SELECT * FROM runs"; or --file, --tables, --examples'
        )
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {file}: {error}") from error
    assert statement is not None
    return sys.stdin.read() if statement == "-" else statement


def _print_relations() -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from unstable_stream.archive.reference import relations

    console = Console()
    for relation in relations():
        console.print(Text.assemble((relation.name, "bold"), f" ({relation.kind}): ", relation.doc))
        console.print(Padding(Text(", ".join(relation.columns), style="dim"), (0, 0, 0, 4)))
    print("What each column means: docs/archive.md", file=sys.stderr)


def _print_examples() -> None:
    from unstable_stream.archive.examples import EXAMPLES

    for example in EXAMPLES:
        print(f"-- {example.question}\n{example.sql};\n")


def _archive(data: DataOption = Path("unstable-data")) -> None:
    """Archive what the log holds and the archive does not. A run does this by itself while it trains.

    Example: unstable-stream archive --data unstable-data
    """
    from rich.console import Console

    from unstable_stream.archive import Written
    from unstable_stream.errors import EventLogError
    from unstable_stream.eventlog.local import LocalLog
    from unstable_stream.services.archiver import run_archiver

    log_path = data / "log.sqlite"
    if not log_path.is_file():
        raise EventLogError(
            f"no event log at {log_path}: start a run first, or name its directory with --data"
        )
    records = rejected = 0

    async def catch_up() -> None:
        log = LocalLog.open(log_path)
        stop = asyncio.Event()
        stop.set()
        try:
            await run_archiver(log, data / "archive.duckdb", stop=stop, on_flush=count)
        finally:
            await log.close()

    def count(written: Written) -> None:
        nonlocal records, rejected
        records += written.records
        rejected += len(written.rejected)

    console = Console(stderr=True, highlight=False)
    with console.status("archiving"):
        asyncio.run(catch_up())
    console.print(
        f"{records:,} records archived, {rejected:,} of them could not be decoded (see dead_letters)"
    )
