"""Commands that train: start a run, go on with one, look at it and change it while it goes on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

import unstable_stream as us
from unstable_stream.api.output import configure_output, plain
from unstable_stream.api.place import DEFAULT_DATA_DIR, Place
from unstable_stream.errors import ConfigError
from unstable_stream.ui.cli.options import (
    AllowCodeOption,
    DataOption,
    MetricsPortOption,
    OptionalLogOption,
    QuietOption,
    RunArgument,
    RunOption,
    RunsArgument,
    SetOption,
)
from unstable_stream.ui.cli.running import Resumed, print_plan, run_to_end
from unstable_stream.ui.cli.sweeping import listed_grid, listed_seeds, run_sweep


def _changes(settings: Mapping[str, object], overrides: Sequence[str] | None) -> list[str]:
    """Return ``KEY=VALUE`` of the settings that are given, then the overrides, which are stronger."""
    given = [f"{key}={value}" for key, value in settings.items() if value is not None]
    return [*given, *(overrides or ())]


def quickstart_command(
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
    run = quickstart(model, data=data, overrides=_changes(settings, overrides))
    run_to_end(run, quiet=quiet)


def train_command(
    config: Annotated[Path | None, typer.Argument()] = None,
    overrides: SetOption = None,
    engine: str | None = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN")] = None,
    dry_run: bool = False,
    seeds: Annotated[str | None, typer.Option(metavar="N,N,...")] = None,
    grid: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE,VALUE,...")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1)] = None,
    stop_worse: bool = False,
    quiet: QuietOption = False,
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    metrics_port: MetricsPortOption = None,
    allow_code: AllowCodeOption = None,
) -> None:
    """Train a model by self-play until its updates are done; Ctrl-C stops it, --resume goes on.

    With --seeds and --grid it is a sweep of many runs; the same command again goes on where it stopped.

    Example: unstable-stream train examples/simpletak.toml --set learner.iterations=50

    Example: unstable-stream train my.toml --seeds 0,1,2 --grid learner.learning_rate=1e-3,5e-4

    Args:
        config: Configuration, a TOML file.
        engine: Inference engine: transformers or vllm.
        resume: Go on with a stopped run.
        dry_run: Check everything; print the resolved configuration and where it would compute.
        seeds: A run for each of these seeds.
        grid: A run for each of these values of a key, with every seed; repeat it for several keys.
        jobs: Runs of a sweep beside each other. Default: one for each GPU, without one for each four cores.
        stop_worse: Give no more seeds to what is clearly worse than the best, by 95 % intervals over seeds.
    """
    changes = _changes({"engine.type": engine, "metrics_port": metrics_port}, overrides)
    if (seeds or grid) and config is not None and not resume:
        made = us.sweep(
            config, seeds=listed_seeds(seeds), grid=listed_grid(grid), data=data, log=log, overrides=changes
        )
        allowed = allow_code or []
        run_sweep(made, jobs=jobs, stop_worse=stop_worse, allow_code=allowed, dry_run=dry_run, quiet=quiet)
        return
    if seeds or grid or jobs or stop_worse:
        raise ConfigError(
            "a sweep needs a configuration file, and --seeds or --grid, e.g. unstable-stream train my.toml "
            "--seeds 0,1,2; the same command goes on with it, without --resume"
        )
    if resume and config is not None:
        raise ConfigError("give a configuration file or --resume RUN: a run keeps its configuration")
    if resume:
        resumed = Resumed(changes, allow_code or [])
        run_to_end(us.open_run(resume, data, log), quiet=quiet, dry_run=dry_run, resumed=resumed)
    elif config is None:
        raise ConfigError("give a configuration file, e.g. unstable-stream train examples/simpletak.toml")
    else:
        run_to_end(us.load(config, data=data, log=log, overrides=changes), quiet=quiet, dry_run=dry_run)


def plan_command(config: Path, overrides: SetOption = None, engine: str | None = None) -> None:
    """Show where each process of a run would compute, and its memory; start nothing.

    It plans for this machine, or for the Ray cluster that the environment variable RAY_ADDRESS names.

    "start" is what it takes when the model is loaded, "peak" with the longest turns that the settings allow.

    Example: unstable-stream plan examples/simpletak.toml --engine vllm

    Args:
        config: Configuration, a TOML file.
        engine: Inference engine: transformers or vllm.
    """
    print_plan(us.load(config, overrides=_changes({"engine.type": engine}, overrides)).plan())


def watch_command(runs: RunsArgument = None, *, place: Place) -> None:
    """Follow a run live: progress, throughput, win rates, ratings. Ctrl-C closes the view, not the run.

    Several runs get a row each.

    Example: unstable-stream watch

    Example: unstable-stream watch quickstart-2026 latest
    """
    from unstable_stream.api.run import watch_together

    opened = [us.open_run(run, **place.named) for run in runs or ["latest"]]
    if len(opened) == 1:
        opened[0].watch()
    else:
        watch_together(opened)


def scale_command(
    run: RunArgument,
    engines: Annotated[int | None, typer.Option(min=1, metavar="N")] = None,
    as_configured: bool = False,
    *,
    place: Place,
) -> None:
    """Give a run that is going on more or fewer engines.

    The decision is recorded and holds when the run is resumed. New engines start as far as the Ray cluster
    has room for them; engines that are too many answer what they were asked before they end.

    Example: unstable-stream scale quickstart-2026 --engines 4

    Args:
        engines: Number of engines.
        as_configured: Follow collector.num_actors again.
    """
    if (engines is None) is not as_configured:
        raise typer.BadParameter("give a number, or --as-configured", param_hint="--engines")
    found = us.open_run(run, **place.named)
    found.scale(engines)
    wanted = "as many engines as configured" if engines is None else f"{engines} engine{'s' * (engines > 1)}"
    typer.echo(f"run {plain(found.id)} shall have {wanted}; table engine_changes of the archive says when")


def fork_command(
    run: Annotated[str, typer.Argument()],
    at: Annotated[int | None, typer.Option(min=0, metavar="UPDATE")] = None,
    overrides: SetOption = None,
    dry_run: bool = False,
    quiet: QuietOption = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Start a new run from a checkpoint of another, with other settings.

    It goes on with the weights, optimizer state and update number of that checkpoint, new games, and the
    earlier checkpoints as opponents.

    Example: unstable-stream fork quickstart-2026 --at 10 --set learner.learning_rate=1e-4

    Args:
        run: Run to fork, or RUN@UPDATE, RUN@best, RUN@-1.
        at: Fork after this update. Default: the newest checkpoint.
        dry_run: Check everything; print the resolved configuration and where it would compute.
    """
    from unstable_stream.api.checkpoints import CheckpointName, split_name
    from unstable_stream.api.run import fork_run

    parent = split_name(run) if at is None else CheckpointName(run, at)
    forked = fork_run(place, parent, {}, overrides or [], allow_code or [])
    run_to_end(forked, quiet=quiet, dry_run=dry_run)


def processors_command(
    run: RunOption = None,
    runtime: Literal["generic", "faust"] = "generic",
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Shape rewards and rate models of all runs, until SIGTERM or Ctrl-C.

    Start as many as you like: they share the partitions. Runs that leave the work to them have
    external = ["processors"]. The records of a run that names code which is not allowed here are set aside.

    Example: unstable-stream processors --log kafka://127.0.0.1:9092

    Args:
        runtime: What hosts them; faust (faust-streaming) needs a Kafka log.
    """
    from unstable_stream.api.serving import processors

    configure_output("processors")

    def say_ready(whose: str) -> None:
        print(f"processors ready: {whose}, {runtime} runtime, log {place.log}", flush=True)

    processors(place, run, runtime=runtime, allow_code=allow_code or [], on_ready=say_ready)
