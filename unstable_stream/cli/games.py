"""``unstable-stream games``: find games and read them."""

import sys
from collections.abc import Sequence
from typing import Any

import typer

from unstable_stream.api.game_filter import GameFilter, Result, Sort, Split, State
from unstable_stream.api.output import plain, plain_console
from unstable_stream.api.place import DEFAULT_DATA_DIR, ArchiveAddress
from unstable_stream.cli.options import DataOption
from unstable_stream.cli.query_output import (
    CsvOption,
    Format,
    JsonOption,
    TableOption,
    pick_format,
    print_rows,
)

__all__ = ["register"]

_SHORT_ID = 8


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(invoke_without_command=True)
    group.callback(help=_list.__doc__)(_list)
    group.command("show", help=_show.__doc__)(_show)
    app.add_typer(group, name="games")


def _list(
    context: typer.Context,
    run: str | None = typer.Option(None, "--run", help="Run id, or its beginning."),
    split: Split | None = typer.Option(None, "--split", help="Only games of this split."),
    state: State | None = typer.Option(None, "--state", help="Only games that got so far."),
    env: str | None = typer.Option(None, "--env", help="Only games of environments with this in the name."),
    model: str | None = typer.Option(None, "--model", help="Only games this model played in."),
    opponent: str | None = typer.Option(
        None, "--opponent", help="Only games in which the --model, or any checkpoint, met this one."
    ),
    seat: int | None = typer.Option(
        None, "--seat", min=0, help="Only games in which the --model, or any checkpoint, had this seat."
    ),
    result: Result | None = typer.Option(
        None, "--result", help="How it ended for the --model, or without one for any checkpoint."
    ),
    update: int | None = typer.Option(
        None, "--update", min=1, help="Only games with a step that this learner update trained on or dropped."
    ),
    invalid: bool = typer.Option(False, "--invalid", help="Only games with an invalid move."),
    truncated: bool = typer.Option(
        False, "--truncated", help="Only games that were cut short, or with a completion that was."
    ),
    min_moves: int | None = typer.Option(None, "--min-moves", min=0, help="Only games of so many moves."),
    max_moves: int | None = typer.Option(None, "--max-moves", min=0, help="Only games of at most so many."),
    sort: Sort = typer.Option("latest", "--sort", help="Which come first; tokens: most sampled tokens."),
    limit: int = typer.Option(20, "--limit", "-n", min=1, help="At most so many, the first by --sort."),
    browse: bool = typer.Option(False, "--browse", help="Read them one after the other, by key."),
    data: DataOption = DEFAULT_DATA_DIR,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
) -> None:
    """List games, the latest first; 'games show ID' tells one move by move.

    Example: unstable-stream games --split eval --model ckpt-000012 --result loss

    Example: unstable-stream games --invalid --sort longest --browse

    Example: unstable-stream games show 3f2a9c1e
    """
    if context.invoked_subcommand is not None:
        return
    from unstable_stream.api.games import find_games
    from unstable_stream.api.place import Place

    form = pick_format(as_csv, as_json, as_table)
    archive = Place.at(data).archive
    wanted = {name: value for name, value in context.params.items() if name in GameFilter.__annotations__}
    found = find_games(archive, run=run, **wanted)
    rows = found.rows
    if browse:
        _browse(archive, [row[0] for row in rows])
        return
    if form is Format.TABLE:
        print_rows(*_narrow(found.columns, rows), form)
    else:
        print_rows(found.columns, rows, form)


def _narrow(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[list[str], list[list[Any]]]:
    """Return what fits a line of a terminal; what all games share is said once. ``Any``: columns' values."""
    shared = [
        name
        for place, name in enumerate(columns)
        if name in ("run", "split", "env") and len({row[place] for row in rows}) == 1
    ]
    if shared:
        print(
            plain("all: " + ", ".join(f"{name} {rows[0][columns.index(name)]}" for name in shared)),
            file=sys.stderr,
        )
    kept = [place for place, name in enumerate(columns) if name not in shared]
    narrowed = [[_narrow_cell(columns[place], row[place]) for place in kept] for row in rows]
    return [columns[place] for place in kept], narrowed


def _narrow_cell(name: str, value: Any) -> Any:
    """``Any``: a column's value."""
    if name == "game":
        return value[:_SHORT_ID]
    if name == "ended" and value is not None:
        return value.replace(microsecond=0)
    return value


def _show(
    game: str = typer.Argument(..., help="The game's id, or enough of its beginning."),
    data: DataOption = DEFAULT_DATA_DIR,
    tokens: bool = typer.Option(
        False, "--tokens", help="Show each sampled token with its log-probability in nats."
    ),
    prompts: bool = typer.Option(False, "--prompts", help="Show what the engine was given, word for word."),
    pager: bool = typer.Option(False, "--pager", help="Page through it ($PAGER, or less)."),
    as_json: bool = typer.Option(False, "--json", help="Print the transcript as one JSON object."),
) -> None:
    """Tell one game move by move: what each model saw, wrote and did, its rewards, and how it ended.

    Example: unstable-stream games show 3f2a9c1e --tokens
    """
    from unstable_stream.api.games import load_transcript, shown_game
    from unstable_stream.api.place import Place

    archive = Place.at(data).archive
    transcript = load_transcript(archive, game)
    if as_json:
        import msgspec

        print(msgspec.json.encode(transcript).decode())
        return

    console = plain_console(highlight=False)
    shown = shown_game(archive, transcript, tokens=tokens, prompts=prompts)
    if not pager:
        console.print(shown)
        return
    # Without colours less would need -R, which not everyone's pager has.
    with console.pager(styles=console.is_terminal):
        console.print(shown)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _browse(archive: ArchiveAddress, games: Sequence[str]) -> None:
    """Show one game at a time; keys go on, back, or end."""
    import click

    from unstable_stream.api.games import load_transcript, shown_game

    if not _is_terminal():
        raise typer.BadParameter("--browse needs a terminal to read keys from; 'games show ID' does not")
    console = plain_console(highlight=False)
    if not games:
        console.print("no such games")
        return
    place = 0
    while True:
        console.clear()
        console.print(shown_game(archive, load_transcript(archive, games[place])))
        console.print(f"game {place + 1} of {len(games)} · n next · p previous · q quit", style="reverse")
        key = click.getchar()
        if key in ("q", "\x1b", "\x03", "\x04"):
            return
        if key in ("n", " ", "\r", "\x1b[C", "\x1b[B"):
            place = min(place + 1, len(games) - 1)
        elif key in ("p", "\x7f", "\x1b[D", "\x1b[A"):
            place = max(place - 1, 0)
