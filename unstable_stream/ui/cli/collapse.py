"""``unstable-stream collapse``: looks at a recorded run for signs of a collapse."""

import typer

from unstable_stream.api.place import Place


def command(run: str, *, place: Place) -> None:
    """Look at a run's updates for signs of a collapse; status 1 and the way back if there are any.

    The learner does the same while it trains; here the rules are applied to any recorded run.

    Example: unstable-stream collapse quickstart-2026

    Args:
        run: Run id, or an unambiguous prefix.
    """
    from unstable_stream.api.output import plain
    from unstable_stream.api.run import open_run

    found = open_run(run, place.root, place.log).collapse()
    for sentence in found.advice:
        typer.secho(plain(sentence), fg="yellow")
    if found.warnings:
        raise typer.Exit(1)
    typer.echo(f"no sign of a collapse in {found.updates} updates")
