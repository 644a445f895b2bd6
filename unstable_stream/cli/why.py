"""``unstable-stream why``: where something comes from, and what came of it."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("why", help=_why.__doc__)(_why)


def _why(
    wanted: str | None = typer.Argument(
        None,
        metavar="[ID]",
        help="A step, game, trajectory, checkpoint, run or any event: its id or the beginning of it; "
        "or RUN:update:N, or RUN:CHECKPOINT.",
    ),
    update: int | None = typer.Option(None, "--update", min=1, help="This learner update, instead of an id."),
    run: str = typer.Option("", "--run", help="Only in this run: its id, the beginning of it, or its name."),
    depth: int | None = typer.Option(
        None,
        "--depth",
        min=1,
        max=20,
        help="How many hops to go in each direction; otherwise 2, and 3 ahead from a game or trajectory.",
    ),
    limit: int = typer.Option(
        3, "--limit", "-n", min=1, help="Show so many of each list, and say how many there are."
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    as_json: bool = typer.Option(
        False, "--json", help="Print all of it, tokens included, as one JSON object."
    ),
) -> None:
    """Walk from a gradient step back to games, tokens, adapters and seeds, and from a game on to updates.

    Example: unstable-stream why --update 5

    Example: unstable-stream why 3f2a9c1e --depth 2
    """
    if (wanted is None) == (update is None):
        raise typer.BadParameter("give one id, e.g. unstable-stream why 3f2a9c1e; or --update 5")
    from unstable_stream.api.place import Place
    from unstable_stream.api.why import find_why

    name = wanted or f"update:{update}"
    found = find_why(Place.at(data), name, run=run, depth=depth, limit=None if as_json else limit)
    if as_json:
        print(found.to_json().decode())
    else:
        found.show()
