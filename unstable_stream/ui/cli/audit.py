"""``unstable-stream audit``: proves that a run lost nothing and did nothing twice."""

import typer

from unstable_stream.api.place import Place


def command(run: str, *, place: Place) -> None:
    """Prove from the log that a run's games and steps add up; status 1 and what is wrong if they do not.

    Works at any time, also while the run goes on or after it was killed.

    Example: unstable-stream audit quickstart-2026

    Args:
        run: Run id, or an unambiguous prefix.
    """
    from unstable_stream.api.run import open_run

    report = open_run(run, place.root, place.log).audit()
    typer.echo(report.table())
    typer.secho(f" {report.verdict}", fg="green" if report.ok else "red")
    for problem in report.problems:
        typer.echo(problem, err=True)
    if not report.ok:
        raise typer.Exit(1)
