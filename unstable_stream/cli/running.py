"""Running a configuration with the live view; shared by ``train`` and ``quickstart``."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from unstable_stream.runs.config import RunConfig, parse_config

if TYPE_CHECKING:
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.runs.fork import Fork

__all__ = ["run_config"]


def run_config(
    config: RunConfig | None,
    data: Path,
    *,
    resume: str | None = None,
    log: str = "local",
    fork: "Fork | None" = None,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    dry_run: bool = False,
    allow_code: Sequence[str] = (),
) -> str:
    """Launch, resume or fork a run and return its id. Exits with status 130 if it was interrupted.

    ``log`` is where the run to resume is found, and goes on. ``allow_code`` are patterns of code that its
    recorded configuration may name, beside what it was started with from this data directory.
    """
    from unstable_stream.log.open import check_log
    from unstable_stream.runs.data_dir import DataDir

    directory = DataDir(data)
    if config is not None and config.log != "local" and not dry_run:
        asyncio.run(check_log(config.log, directory.log))  # said at once, before anything heavy is loaded
    from unstable_stream.launch.launcher import launch
    from unstable_stream.launch.preflight import check_config
    from unstable_stream.launch.service_output import configure_output
    from unstable_stream.runs.code import confine_to_own, patterns_of
    from unstable_stream.runs.resume import check_resumable
    from unstable_stream.tracking.terminal_interface import Stage, watch_run

    if resume is not None:
        resume, found = asyncio.run(_find(resume, log, directory))
        config = parse_config(
            found.model_dump(mode="json"), [*overrides, f"log={log}"], origin=f"run {resume}"
        )
        check_resumable(found, config)
        allowed = [*allow_code, *patterns_of(config, besides=found)]
        confine_to_own(directory.own_code(resume), allowed)
    assert config is not None
    if dry_run:
        check_config(config)
        typer.echo(config.model_dump_json(indent=2))
        raise typer.Exit
    configure_output("launcher", level=logging.WARNING)  # the live view says the rest
    stage = Stage()
    done = asyncio.run(
        launch(
            config,
            directory,
            resume=resume,
            fork=fork,
            watch=None if quiet else partial(watch_run, stage=stage),
            progress=(lambda stage: None) if quiet else stage,
        )
    )
    if done.outcome != "completed":
        print(
            f"run {done.run_id} {done.outcome}; go on with: unstable-stream train --resume {done.run_id}"
            f"{directory.options(config.log)}",
            file=sys.stderr,
        )
        raise typer.Exit(130)
    return done.run_id


async def _find(run_id: str, location: str, directory: "DataDir") -> tuple[str, RunConfig]:
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.history import find_run

    async with opened_log(location, directory.log, existing=True) as log:
        return await find_run(log, run_id)
