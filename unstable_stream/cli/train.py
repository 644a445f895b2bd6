"""``unstable-stream train``: run a configuration from a TOML file."""

from pathlib import Path

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import (
    AllowCodeOption,
    DataOption,
    MetricsPortOption,
    OptionalLogOption,
    SetOption,
)

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train", help=_train.__doc__)(_train)


def _train(
    config: Path | None = typer.Argument(None, help="Configuration, a TOML file."),
    overrides: SetOption = None,
    engine: str | None = typer.Option(None, "--engine", help="Inference engine: transformers or vllm."),
    resume: str | None = typer.Option(None, "--resume", metavar="RUN", help="Go on with a stopped run."),
    dry_run: bool = typer.Option(
        False,
        "--dry-run",
        help="Check everything; print the resolved configuration and where it would compute.",
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No live view."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    metrics_port: MetricsPortOption = None,
    allow_code: AllowCodeOption = None,
) -> None:
    """Train a model by self-play until its updates are done; Ctrl-C stops it, --resume goes on.

    Example: unstable-stream train examples/simpletak.toml --set learner.iterations=50
    """
    from unstable_stream.api.build import load
    from unstable_stream.api.run import open_run
    from unstable_stream.cli.running import print_dry_run, run_to_end
    from unstable_stream.errors import ConfigError

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
