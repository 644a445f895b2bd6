"""``unstable-stream why``: where something comes from, and what came of it."""

from typing import Annotated

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import DataOption


def command(
    wanted: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    update: Annotated[int | None, typer.Option(min=1)] = None,
    run: str = "",
    depth: Annotated[int | None, typer.Option(min=1, max=20)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 3,
    data: DataOption = DEFAULT_DATA_DIR,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Walk from a gradient step back to games, tokens, adapters and seeds, and from a game on to updates.

    Example: unstable-stream why --update 5

    Example: unstable-stream why 3f2a9c1e --depth 2

    Args:
        wanted: A step, game, trajectory, checkpoint, run or any event: its id or the beginning of it; or
            RUN:update:N, or RUN:CHECKPOINT.
        update: This learner update, instead of an id.
        run: Only in this run: its id, the beginning of it, or its name.
        depth: How many hops to go in each direction; otherwise 2, and 3 ahead from a game or trajectory.
        limit: Show so many of each list, and say how many there are.
        as_json: Print all of it, tokens included, as one JSON object.
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
