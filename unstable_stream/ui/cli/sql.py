"""``unstable-stream sql``: ask the archive."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import DataOption
from unstable_stream.ui.cli.query_output import Format, take_rows


def command(
    statement: Annotated[str | None, typer.Argument(metavar="SQL")] = None,
    data: DataOption = DEFAULT_DATA_DIR,
    file: Annotated[Path | None, typer.Option("--file", "-f")] = None,
    tables: bool = False,
    examples: bool = False,
    write: bool = False,
    files: bool = False,
    *,
    form: Format,
) -> None:
    """Query every game, turn, step, rating and update, also while a run trains. Without a query, list tables.

    Example: unstable-stream sql "SELECT policy_version, win_rate FROM learning_curve ORDER BY 1"

    Example: unstable-stream sql --file question.sql --csv > answer.csv

    Example: unstable-stream sql --files "COPY (FROM turns) TO 'turns.parquet'"

    Args:
        statement: The query; '-' reads it from stdin.
        file: Read the query from a file.
        tables: List tables and views with their columns.
        examples: Print useful queries.
        write: Allow changes to the archive.
        files: Let the query read and write other files.
    """
    if tables or (statement is None and file is None and not examples):
        _print_relations()
    elif examples:
        _print_examples()
    else:
        from unstable_stream.api.archived import stream
        from unstable_stream.api.place import Place

        with stream(Place.at(data).archive, _statement(statement, file), write=write, files=files) as result:
            print_them = take_rows(result.columns, result.rows, form)
        if result.missing:
            print(
                "note: the log deleted records before they were archived, by topic and offsets: "
                f"{', '.join(result.missing)}. See missing_records, and missing_of_runs",
                file=sys.stderr,
            )
        print_them()


def _statement(statement: str | None, file: Path | None) -> str:
    if statement is not None and file is not None:
        raise typer.BadParameter("give one query: as an argument, or with --file")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {file}: {error}") from error
    return sys.stdin.read() if statement == "-" else statement or ""


def _print_relations() -> None:
    from rich.padding import Padding
    from rich.text import Text

    from unstable_stream.api.archived import relations
    from unstable_stream.api.output import plain_console

    console = plain_console()
    for relation in relations():
        console.print(Text.assemble((relation.name, "bold"), f" ({relation.kind}): ", relation.doc))
        console.print(Padding(Text(", ".join(relation.columns), style="dim"), (0, 0, 0, 4)))
    print(
        'What each column means: docs/archive.md. Ask with: unstable-stream sql "SELECT * FROM runs"',
        file=sys.stderr,
    )


def _print_examples() -> None:
    from unstable_stream.api.archived import EXAMPLES

    for example in EXAMPLES:
        print(f"-- {example.question}\n{example.sql};\n")
