"""Running to the end with the live view; shared by all commands that play games."""

import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer

from unstable_stream.api.output import configure_output, plain, plain_console
from unstable_stream.ui.cli.options import environment

if TYPE_CHECKING:
    from unstable_stream.api.build import RunConfig
    from unstable_stream.api.evaluation import EvaluationOptions
    from unstable_stream.api.run import Run, RunPlan

PIPED_WIDTH: Final = 120


class Resumed(NamedTuple):
    """The changes and permissions that a run is resumed with."""

    overrides: list[str]
    allow_code: list[str]


def run_to_end(
    run: "Run",
    *,
    quiet: bool,
    dry_run: bool = False,
    resumed: Resumed | None = None,
    summary: bool = True,
    heal: int = 0,
) -> None:
    """Start a run, or resume it; print what it has come to. Exits with status 130 if it was interrupted.

    With ``dry_run`` only print its configuration and where it would compute; with ``heal`` it is forked
    before a collapse, so often at most.
    """
    if dry_run:
        print_dry_run(run.config if resumed is None else run.resumable_config(*resumed))
        return
    configure_output("launcher", level=logging.WARNING)  # the live view says the rest
    with contextlib.suppress(SystemExit):  # a signal has ended it in order
        if heal:
            from unstable_stream.api.healing import branches

            for going_on in branches(run, heal, live=not quiet, report=lambda line: print(plain(line))):
                run = going_on  # after a signal, the one that it stopped
        elif resumed is None:
            run.start(live=not quiet)
        else:
            run.resume(live=not quiet, **resumed._asdict())
    if run.state != "completed":
        print(
            plain(f"run {run.id} {run.state}; go on with: unstable-stream train --resume {run.id}")
            + run.place.options,
            file=sys.stderr,
        )
        raise typer.Exit(130)
    if summary:
        print_summary(run)


def print_summary(run: "Run") -> None:
    """Print the results of a run, and the commands that ask it further."""
    from rich.markup import escape

    from unstable_stream.api.summary import summarise

    summary = summarise(run)
    # Piped into a file, the tables keep their columns.
    console = plain_console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print(f"\n[bold]Run {escape(run.id)} {run.state}[/]: {summary.work}", highlight=False)
    for title, detail, part in summary.parts:
        console.print(f"\n[bold]{title}[/]: {escape(detail)}", highlight=False)
        console.print(part)
    if summary.repeats:
        console.print(f"\n{escape(summary.repeats)}", highlight=False)
    console.print(f"\nEverything that happened is in [bold]{escape(summary.place)}[/]. Ask it:")
    for purpose, command in summary.next_commands:
        console.print(f"  [dim]# {purpose}[/]\n  {escape(command)}", highlight=False, soft_wrap=True)


def print_dry_run(config: "RunConfig") -> None:
    """Print a resolved configuration that was checked, and to the standard error where it would compute."""
    from unstable_stream.api.run import plan_config

    plan = plan_config(config, fetch=False)
    typer.echo(config.model_dump_json(indent=2))
    if plan.needs:
        print_plan(plan, to_error=True)
    else:
        typer.echo("\n".join([*plan.lines, f"{config.model} is not here: no memory is foretold"]), err=True)


def print_plan(plan: "RunPlan", *, to_error: bool = False) -> None:
    """Print the table of a plan, and its warnings to the standard error."""
    typer.echo(plan.table(), err=to_error)
    for warning in plan.warnings:
        typer.secho(warning, fg="yellow", err=True)


def evaluation_options(context: typer.Context) -> "EvaluationOptions":
    """Return the options of a command that plays games on fixed seeds, from parameters of the same names."""
    from unstable_stream.api.evaluation import EvaluationOptions

    known = EvaluationOptions.__annotations__
    given: dict[str, Any] = {name: value for name, value in context.params.items() if name in known}
    given["envs"] = [environment(env) for env in given.get("envs") or ()] or None
    given |= {name: given[name] or [] for name in ("overrides", "allow_code")}
    return cast("EvaluationOptions", given)
