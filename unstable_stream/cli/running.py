"""Running to the end with the live view; shared by ``train``, ``fork`` and ``quickstart``."""

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from unstable_stream.api.output import configure_output

if TYPE_CHECKING:
    from unstable_stream.api.build import RunConfig
    from unstable_stream.api.run import Run

__all__ = ["print_config", "run_to_end"]


def run_to_end(
    run: "Run",
    *,
    quiet: bool,
    resume: bool = False,
    overrides: Sequence[str] = (),
    allow_code: Sequence[str] = (),
) -> None:
    """Start a run, or resume it with the last two; exits with status 130 if it was interrupted."""
    configure_output("launcher", level=logging.WARNING)  # the live view says the rest
    if resume:
        run.resume(live=not quiet, overrides=overrides, allow_code=allow_code)
    else:
        run.start(live=not quiet)
    if run.state != "completed":
        print(
            f"run {run.id} {run.state}; go on with: unstable-stream train --resume {run.id}"
            f"{run.place.options}",
            file=sys.stderr,
        )
        raise typer.Exit(130)


def print_config(config: "RunConfig") -> None:
    """Print a resolved configuration that was checked."""
    typer.echo(config.model_dump_json(indent=2))
