"""``unstable-stream audit``: proves that a run lost nothing and did nothing twice."""

from typing import TYPE_CHECKING

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

if TYPE_CHECKING:
    from unstable_stream.api.run import AuditReport

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit", help=_audit.__doc__)(_audit)


def _audit(
    run: str = typer.Argument(..., help="Run id, or an unambiguous prefix."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Prove from the log that a run's games and steps add up; status 1 and what is wrong if they do not.

    Works at any time, also while the run goes on or after it was killed.

    Example: unstable-stream audit quickstart-2026
    """
    from unstable_stream.api.run import open_run

    report = open_run(run, data, log).audit()
    _print_report(report)
    if not report.balanced:
        for problem in report.problems:
            typer.echo(problem, err=True)
        raise typer.Exit(1)


def _print_report(report: "AuditReport") -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(box=None, show_header=False, padding=(0, 1), title=f"{report.run_id} ({report.state})")
    table.title_justify = "left"
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    for split, games in report.games.items():
        table.add_row(
            f"{split} games started",
            f"{games.started:,}",
            f"= {games.finished:,} finished + {games.abandoned:,} abandoned + {games.in_flight:,} in flight",
        )
    steps = report.steps
    table.add_row(
        "steps expected",
        f"{steps.expected:,}",
        f"= {steps.produced:,} produced + {steps.set_aside:,} set aside + {steps.unshaped:,} to be shaped",
    )
    dropped = "".join(f" + {count:,} {reason}" for reason, count in steps.dropped.items())
    table.add_row(
        "steps produced",
        f"{steps.produced:,}",
        f"= {steps.trained:,} trained{dropped or ' + 0 dropped'} + {steps.pending:,} pending",
    )
    table.add_row("updates", f"{report.updates:,}", f"{report.checkpoints:,} checkpoints")
    table.add_row("redelivered", f"{report.redelivered:,}", f"counted once; {report.replayed:,} played again")
    table.add_row("dead letters", f"{report.rejected:,}", "")
    console.print(table, highlight=False)
    verdict = "[green]balanced[/]" if report.balanced else f"[red]{len(report.problems)} problems[/]"
    console.print(f" {verdict}", highlight=False)
