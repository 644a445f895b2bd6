"""``unstable-stream verify``: recomputes everything that can be, and compares."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption

if TYPE_CHECKING:
    from unstable_stream.api.run import VerifyReport

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help=_verify.__doc__)(_verify)


def _verify(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    games: bool = typer.Option(True, "--games/--no-games", help="Play every recorded game again."),
    jobs: int = typer.Option(1, "--jobs", "-j", min=1, help="Processes that play."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as one JSON object."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    allow_code: AllowCodeOption = None,
) -> None:
    """Recompute a run's steps, ratings and batches from their causes, play its games again, and compare.

    Status 1 if anything differs, with the first differences of each kind on stderr. What the processors of
    a stopped run have yet to do is counted as pending. Changes nothing.

    Example: unstable-stream verify quickstart-2026 --jobs 2
    """
    from unstable_stream.api.run import open_run

    with _progress_bar() as progress:
        report = open_run(run, data, log).verify(
            games=games, jobs=jobs, allow_code=allow_code or [], progress=progress
        )
    if as_json:
        print(report.to_json().decode())
    else:
        _print_report(report)
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
    for check in report.checks:
        for difference in check.first:
            typer.echo(f"{check.name}: {difference}", err=True)
        if check.differing > len(check.first):
            typer.echo(f"{check.name}: and {check.differing - len(check.first):,} more", err=True)
    if not report.clean:
        raise typer.Exit(1)


@contextmanager
def _progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """Show on stderr, if it is a terminal, what is being done; it goes away at the end."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _print_report(report: "VerifyReport") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 1), title=f"{report.run_id} ({report.state})", header_style="bold")
    table.title_justify = "left"
    table.add_column("")
    for heading in ("compared", "differ", "pending", "gone"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for check in report.checks:
        differing = f"[red]{check.differing:,}[/]" if check.differing else "0"
        counts = (f"{check.compared:,}", differing, f"{check.pending:,}", f"{check.gone:,}")
        table.add_row(check.name, *counts, check.skipped or "")
    console.print(table)
    wrong = sum(check.differing for check in report.checks)
    console.print(" [green]verified[/]" if report.clean else f" [red]{wrong:,} difference(s)[/]")
