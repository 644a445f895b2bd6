"""``unstable-stream scale``: more or fewer engines for a run that is going on."""

from typing import Annotated

import typer

from unstable_stream.api.place import Place


def command(
    run: str,
    engines: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    as_configured: bool = False,
    *,
    place: Place,
) -> None:
    """Give a run that is going on more or fewer engines.

    The decision is recorded and holds when the run is resumed. New engines start as far as the Ray cluster
    has room for them; engines that are too many answer what they were asked before they end.

    Example: unstable-stream scale quickstart-2026 --engines 4

    Args:
        run: Run: id, or an unambiguous prefix.
        engines: Number of engines.
        as_configured: Follow collector.num_actors again.
    """
    from unstable_stream.api.output import plain
    from unstable_stream.api.run import open_run

    if (engines is None) is not as_configured:
        raise typer.BadParameter("give a number, or --as-configured", param_hint="--engines")
    found = open_run(run, place.root, place.log)
    found.scale(engines)
    wanted = "as many engines as configured" if engines is None else f"{engines} engine{'s' * (engines > 1)}"
    typer.echo(
        f"run {plain(found.id)} shall have {wanted}: table engine_changes of the archive tells what comes of "
        "it"
    )
