"""``unstable-stream quickstart``: the whole loop with one command, and a summary of what was learned."""

from typing import Annotated

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import (
    DataOption,
    MetricsPortOption,
    OptionalLogOption,
    QuietOption,
    SetOption,
)


def command(
    model: str = "tiny-player",
    updates: Annotated[int | None, typer.Option(min=1)] = None,
    seed: int = 0,
    engine: str | None = None,
    overrides: SetOption = None,
    print_config: bool = False,
    quiet: QuietOption = False,
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    metrics_port: MetricsPortOption = None,
) -> None:
    """Train a tiny player on SimpleTak, live, and show how much it learned.

    Example: unstable-stream quickstart --seed 1

    Args:
        model: Base model: directory or Hugging Face id.
        updates: Learner updates.
        seed: Seed of the run; the same seed plays the same evaluation games.
        engine: Inference engine: transformers or vllm.
        print_config: Print the configuration file and exit.
    """
    from unstable_stream.api.quickstart import QUICKSTART, quickstart
    from unstable_stream.ui.cli.running import run_to_end

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
