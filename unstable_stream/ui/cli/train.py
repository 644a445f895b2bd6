"""``unstable-stream train``: run a configuration from a TOML file."""

from pathlib import Path
from typing import Annotated

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import (
    AllowCodeOption,
    DataOption,
    MetricsPortOption,
    OptionalLogOption,
    QuietOption,
    SetOption,
)


def command(
    config: Annotated[Path | None, typer.Argument()] = None,
    overrides: SetOption = None,
    engine: str | None = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN")] = None,
    dry_run: bool = False,
    quiet: QuietOption = False,
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    metrics_port: MetricsPortOption = None,
    allow_code: AllowCodeOption = None,
) -> None:
    """Train a model by self-play until its updates are done; Ctrl-C stops it, --resume goes on.

    Example: unstable-stream train examples/simpletak.toml --set learner.iterations=50

    Args:
        config: Configuration, a TOML file.
        engine: Inference engine: transformers or vllm.
        resume: Go on with a stopped run.
        dry_run: Check everything; print the resolved configuration and where it would compute.
    """
    from unstable_stream.api.build import load
    from unstable_stream.api.run import open_run
    from unstable_stream.errors import ConfigError
    from unstable_stream.ui.cli.running import print_dry_run, run_to_end

    changes = list(overrides or [])
    if engine:
        changes.append(f"engine.type={engine}")
    if metrics_port is not None:
        changes.append(f"metrics_port={metrics_port}")
    if resume:
        if config is not None:
            raise ConfigError(
                "give either a configuration file or --resume RUN: a run keeps its configuration"
            )
        run = open_run(resume, data, log)
        if dry_run:
            print_dry_run(run.resumable_config(changes, allow_code or []))
            return
        run_to_end(run, quiet=quiet, resume=True, overrides=changes, allow_code=allow_code or [])
        return
    if config is None:
        raise ConfigError("give a configuration file, e.g. unstable-stream train examples/simpletak.toml")
    run = load(config, data=data, log=log, overrides=changes)
    if dry_run:
        print_dry_run(run.config)
        return
    run_to_end(run, quiet=quiet)
