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
    complete_run,
)
from unstable_stream.ui.cli.output import Format, print_objects, progress_bar
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
    heal: Annotated[int, typer.Option(min=0, metavar="N")] = 0,
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

    Example: unstable-stream train examples/collapse.toml --heal 2

    Args:
        config: Configuration, a TOML file.
        engine: Inference engine: transformers or vllm.
        resume: Go on with a stopped run.
        dry_run: Check everything; print the resolved configuration and where it would compute.
        seeds: A run for each of these seeds.
        grid: A run for each of these values of a key, with every seed; repeat it for several keys.
        jobs: Runs of a sweep beside each other. Default: one for each GPU, without one for each four cores.
        stop_worse: Give no more seeds to what is clearly worse than the best, by 95 % intervals over seeds.
        heal: At a sign of a collapse, fork the run before it with a smaller step and past opponents, and go
            on with the better branch; at most so often.
    """
    on_collapse = "stop" if heal else None
    settings = {"engine.type": engine, "metrics_port": metrics_port, "learner.on_collapse": on_collapse}
    changes = _changes(settings, overrides)
    if heal and (seeds or grid or dry_run or config is None):
        raise ConfigError("--heal is for one run that begins: give a configuration file, without --seeds")
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
        run = us.load(config, data=data, log=log, overrides=changes)
        run_to_end(run, quiet=quiet, dry_run=dry_run, heal=heal)


def imitate_command(
    config: Path,
    where: Annotated[str, typer.Option(metavar="SQL")] = "",
    weight: Annotated[str, typer.Option(metavar="SQL")] = "1",
    pairs: Annotated[str, typer.Option(metavar="SQL")] = "",
    overrides: SetOption = None,
    dry_run: bool = False,
    quiet: QuietOption = False,
    *,
    place: Place,
) -> None:
    """Train a model on turns of games that are played already: of teachers, of other models, of its own.

    It is a run like others, without training games. Begin self-play from it with --set init_from=RUN@last.

    Example: unstable-stream imitate my.toml --where "model_uid = 'perfect'" --weight "1 + reward"

    Args:
        config: Configuration, a TOML file.
        where: Condition over the view moves: the turns to train on.
        weight: The weight of a turn, from columns of the same view.
        pairs: Preferences in place of turns: a query of game and game_turn of a chosen move and of a rejected
            one.
        dry_run: Check everything; print the resolved configuration and where it would compute.
    """
    run = us.imitate(config, where, weight=weight, pairs=pairs, overrides=overrides or [], **place.named)
    run_to_end(run, quiet=quiet, dry_run=dry_run)


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


def learn_command(
    run: Annotated[
        str, typer.Option("--from", metavar="RUN", help="The run.", autocompletion=complete_run)
    ] = "latest",
    configs: Annotated[list[Path] | None, typer.Option("--config", metavar="TOML")] = None,
    updates: Annotated[int | None, typer.Option(min=1)] = None,
    model: str | None = None,
    overrides: SetOption = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    label: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    source: Literal["log", "archive"] = "log",
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
    form: Format,
) -> None:
    """Train learners on the steps of a run, each with other settings, and compare them update by update.

    No game is played, and the run may be going on. Every update has the batch that the run's had, so curves
    are paired; answers are weighted by how probable the learner's policy finds them, and the effective sample
    size says how far that can be trusted. The same again gives the same bytes: stored in the data directory,
    under what-if/RUN/LABEL.

    Example: unstable-stream learn --from quickstart-2026 --config ppo.toml --config slow.toml --html my.html

    Example: unstable-stream learn --from quickstart-2026 --updates 10

    Args:
        configs: What a learner has otherwise than the run; repeat it. Default: nothing, for a change of code.
        updates: Feed only the first so many updates of the run.
        model: Name of the trained model, if the run trains several.
        html: Write the curves to this file.
        label: Name of the stored set. Default: learn and the names of the files.
        force: Replace the set of that --label.
        dry_run: Store nothing, only compare.
        source: Where to read the steps.
    """
    with progress_bar() as progress:
        learned = us.learn(
            run,
            configs or (),
            updates=updates,
            model=model,
            overrides=overrides or (),
            label=label,
            replace=force,
            dry_run=dry_run,
            source=source,
            allow_code=allow_code or [],
            progress=progress,
            **place.named,
        )
    print_objects(learned.rows(), form)
    for line in learned.told():
        typer.echo(plain(line), err=True)
    if learned.directory is not None:
        typer.echo(f"every update is in {learned.directory}", err=True)
    if html is not None:
        learned.write_html(html)
        typer.echo(f"curves in {html}", err=True)


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
