"""``unstable-stream games``: find games and read them."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from unstable_stream.api.game_filter import GameFilter, Result, Sort, Split, State
from unstable_stream.api.output import plain, plain_console
from unstable_stream.api.place import DEFAULT_DATA_DIR, ArchiveAddress
from unstable_stream.ui.cli.options import DataOption
from unstable_stream.ui.cli.query_output import Format, print_rows

_SHORT_ID = 8


def command(
    context: typer.Context,
    run: str | None = None,
    split: Split | None = None,
    state: State | None = None,
    env: str | None = None,
    model: str | None = None,
    opponent: str | None = None,
    seat: Annotated[int | None, typer.Option(min=0)] = None,
    result: Result | None = None,
    update: Annotated[int | None, typer.Option(min=1)] = None,
    invalid: bool = False,
    truncated: bool = False,
    min_moves: Annotated[int | None, typer.Option(min=0)] = None,
    max_moves: Annotated[int | None, typer.Option(min=0)] = None,
    sort: Sort = "latest",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 20,
    browse: bool = False,
    data: DataOption = DEFAULT_DATA_DIR,
    *,
    form: Format,
) -> None:
    """List games, the latest first; 'games show ID' tells one move by move.

    Example: unstable-stream games --split eval --model ckpt-000012 --result loss

    Example: unstable-stream games --invalid --sort longest --browse

    Example: unstable-stream games show 3f2a9c1e

    Args:
        run: Run id, or its beginning.
        split: Only games of this split.
        state: Only games that got so far.
        env: Only games of environments with this in the name.
        model: Only games this model played in.
        opponent: Only games in which the --model, or any checkpoint, met this one.
        seat: Only games in which the --model, or any checkpoint, had this seat.
        result: How it ended for the --model, or without one for any checkpoint.
        update: Only games with a step that this learner update trained on or dropped.
        invalid: Only games with an invalid move.
        truncated: Only games that were cut short, or with a completion that was.
        min_moves: Only games of so many moves.
        max_moves: Only games of at most so many.
        sort: Which come first; tokens: most sampled tokens.
        limit: At most so many, the first by --sort.
        browse: Read them one after the other, by key.
    """
    if context.invoked_subcommand is not None:
        return
    from unstable_stream.api.games import find_games
    from unstable_stream.api.place import Place

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
    game: str,
    data: DataOption = DEFAULT_DATA_DIR,
    tokens: bool = False,
    prompts: bool = False,
    pager: bool = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Tell one game move by move: what each model saw, wrote and did, its rewards, and how it ended.

    Example: unstable-stream games show 3f2a9c1e --tokens

    Args:
        game: The game's id, or enough of its beginning.
        tokens: Show each sampled token with its log-probability in nats.
        prompts: Show what the engine was given, word for word.
        pager: Page through it ($PAGER, or less).
        as_json: Print the transcript as one JSON object.
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


SUBCOMMANDS = {"show": _show}
