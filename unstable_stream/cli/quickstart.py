"""``unstable-stream quickstart``: the whole loop with one command, and a summary of what was learned."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, MetricsPortOption, OptionalLogOption, SetOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quickstart", help=_quickstart.__doc__)(_quickstart)


def _quickstart(
    model: str = typer.Option("tiny-player", "--model", help="Base model: directory or Hugging Face id."),
    updates: int | None = typer.Option(None, "--updates", min=1, help="Learner updates."),
    seed: int = typer.Option(
        0, "--seed", help="Seed of the run; the same seed plays the same evaluation games."
    ),
    engine: str | None = typer.Option(None, "--engine", help="Inference engine: transformers or vllm."),
    overrides: SetOption = None,
    print_config: bool = typer.Option(False, "--print-config", help="Print the configuration file and exit."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No live view."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    metrics_port: MetricsPortOption = None,
) -> None:
    """Train a tiny player on SimpleTak, live, and show how much it learned.

    Example: unstable-stream quickstart --seed 1
    """
    from unstable_stream.api.quickstart import QUICKSTART, quickstart
    from unstable_stream.cli.running import run_to_end

    if print_config:
        typer.echo(QUICKSTART.read_text(encoding="utf-8"), nl=False)
        return
    settings = {
        "seed": seed,
        "learner.iterations": updates,
        "engine.type": engine,
        "log": log,
        "metrics_port": metrics_port,
    }
    changes = [f"{key}={value}" for key, value in settings.items() if value is not None]
    run = quickstart(model, data=data, overrides=[*changes, *(overrides or [])])
    run_to_end(run, quiet=quiet)
