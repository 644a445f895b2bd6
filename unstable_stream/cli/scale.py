"""``unstable-stream scale``: more or fewer engines for a run that is going on."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scale", help=_scale.__doc__)(_scale)


def _scale(
    run: str = typer.Argument(..., help="Run: id, or an unambiguous prefix."),
    engines: int | None = typer.Option(None, "--engines", min=1, metavar="N", help="Number of engines."),
    as_configured: bool = typer.Option(False, "--as-configured", help="Follow collector.num_actors again."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Give a run that is going on more or fewer engines.

    The decision is recorded and holds when the run is resumed. New engines start as far as the Ray cluster
    has room for them; engines that are too many answer what they were asked before they end.

    Example: unstable-stream scale quickstart-2026 --engines 4
    """
    from unstable_stream.api.output import plain
    from unstable_stream.api.run import open_run

    if (engines is None) is not as_configured:
        raise typer.BadParameter("give a number, or --as-configured", param_hint="--engines")
    found = open_run(run, data, log)
    found.scale(engines)
    wanted = "as many engines as configured" if engines is None else f"{engines} engine{'s' * (engines > 1)}"
    typer.echo(
        f"run {plain(found.id)} shall have {wanted}: table engine_changes of the archive tells what comes of "
        "it"
    )
