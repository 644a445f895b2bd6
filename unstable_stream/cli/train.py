"""``unstable-stream train``: run a configuration from a TOML file."""

from pathlib import Path

import typer

from unstable_stream.cli.options import (
    AllowCodeOption,
    DataOption,
    MetricsPortOption,
    OptionalLogOption,
    SetOption,
)
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

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
        False, "--dry-run", help="Check everything and print the resolved configuration."
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
    from unstable_stream.cli.running import run_config
    from unstable_stream.errors import ConfigError
    from unstable_stream.runs.config import load_config

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
        run_config(
            None,
            data,
            resume=resume,
            log=log or "local",
            overrides=changes,
            quiet=quiet,
            dry_run=dry_run,
            allow_code=allow_code or [],
        )
        return
    if log is not None:
        changes.append(f"log={log}")
    if config is None:
        raise ConfigError("give a configuration file, e.g. unstable-stream train examples/simpletak.toml")
    run_config(load_config(config, changes), data, quiet=quiet, dry_run=dry_run)
