"""``unstable-stream verify``: recomputes everything that can be, and compares."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import AllowCodeOption


def command(
    run: str,
    games: Annotated[bool, typer.Option("--games/--no-games")] = True,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1)] = 1,
    train: bool = False,
    updates: str = "5",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Recompute a run's steps, ratings and batches from their causes, play its games again, and compare.

    Status 1 if anything differs, with the first differences of each kind on stderr. What the processors of
    a stopped run have yet to do is counted as pending. With --train, updates are trained on again: metrics
    and weights must come out as recorded. Changes nothing.

    Example: unstable-stream verify quickstart-2026 --train --jobs 2

    Args:
        run: Run id, or an unambiguous prefix.
        games: Play every recorded game again.
        jobs: Processes that play.
        train: Train on recorded updates again.
        updates: With --train: how many updates, spread over the run, or 'all'.
        as_json: Print the report as one JSON object.
    """
    from unstable_stream.api.output import plain
    from unstable_stream.api.run import open_run

    with _progress_bar() as progress:
        report = open_run(run, place.root, place.log).verify(
            games=games,
            jobs=jobs,
            train=train,
            updates=_number(updates),
            allow_code=allow_code or [],
            progress=progress,
        )
    if as_json:
        print(report.to_json().decode())
    else:
        typer.echo(report.table())
        typer.secho(f" {report.verdict}", fg="green" if report.ok else "red")
    for note in report.notes:
        typer.echo(plain(f"note: {note}"), err=True)
    for problem in report.problems:
        typer.echo(problem, err=True)
    if not report.ok:
        raise typer.Exit(1)


def _number(updates: str) -> int | Literal["all"]:
    if updates == "all":
        return "all"
    if not updates.isdecimal() or int(updates) < 1:
        raise typer.BadParameter(f"{updates!r} is neither a number above 0 nor 'all'", param_hint="--updates")
    return int(updates)


@contextmanager
def _progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show on stderr, if it is a terminal, what is being done; it goes away at the end."""
    from rich.progress import Progress

    from unstable_stream.api.output import plain_console

    console = plain_console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
