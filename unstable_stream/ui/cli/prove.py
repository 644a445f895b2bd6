"""Commands that prove an environment and a record, ask what would be otherwise, and read history again."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

import unstable_stream as us
from unstable_stream.api.output import configure_output, plain, plain_console
from unstable_stream.api.place import Place
from unstable_stream.errors import ConfigError
from unstable_stream.ui.cli.options import (
    AllowCodeOption,
    DataPlace,
    NewestRunArgument,
    RunArgument,
    RunOption,
    SetOption,
    parse_moment,
)
from unstable_stream.ui.cli.output import Format, Saying, print_objects, progress_bar, records_read

if TYPE_CHECKING:
    from unstable_stream.api.recorded_run import AuditReport, VerifyReport
    from unstable_stream.api.replaying import Replay
    from unstable_stream.api.serving import Start


def check_env_command(
    env: Annotated[str, typer.Argument(metavar="ENV")],
    players: Annotated[int | None, typer.Option(min=1)] = None,
    games: Annotated[int, typer.Option("--games", "-k", min=4)] = 40,
    seconds: Annotated[float, typer.Option(min=1)] = 60.0,
    seed: int = 0,
    model: str = "",
    template: str = "",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    play: Annotated[str, typer.Option(metavar="JSON")] = "",
    *,
    place: DataPlace,
) -> None:
    """Judge an environment by playing it, before anybody trains on it; status 1 if it fails.

    Each finding has the smallest game that shows it, and the command that plays it again. The verdict is kept
    in the data directory, where runs of the environment find it.

    Example: unstable-stream check-env KuhnPoker-v0-train

    Example: unstable-stream check-env my_game.py:MyGame --games 100

    Example: unstable-stream check-env TicTacToe-v0-train --play '{"seed": 7, "moves": ["[4]", "[0]"]}'

    Args:
        env: An environment of TextArena, openspiel:NAME, or an extension: module:Name, file.py:Name.
        players: Number of seats. Default: two, or the fewest that it takes.
        games: Games by random legal players, from which most checks begin.
        seconds: Time for all checks together; most need a tenth.
        seed: Of the whole trial.
        model: Model whose tokenizer counts the texts. Default: their length in tokens is estimated.
        template: With --model: the prompt template that words them.
        as_json: Print the verdict as one JSON object.
        play: Judge nothing, but play a game again and print it: its seed and moves, as a verdict tells them.
    """
    from unstable_stream.api.environment_check import check_env, played_text

    if play:
        for part in played_text(env, play, players=players):
            typer.echo(plain(part))
        return
    with progress_bar() as progress:
        verdict = check_env(
            env,
            players=players,
            games=games,
            seconds=seconds,
            seed=seed,
            model=model,
            template=template,
            data=place.root,
            progress=progress,
        )
    print(verdict.to_json().decode() if as_json else plain(verdict.page()))
    if verdict.status == "failed":
        raise typer.Exit(1)


def audit_command(run: NewestRunArgument = "latest", *, place: Place) -> None:
    """Prove from the log that a run's games and steps add up; status 1 and what is wrong if they do not.

    Works at any time, also while the run goes on or after it was killed.

    Example: unstable-stream audit

    Example: unstable-stream audit quickstart-2026
    """
    _print_report(us.open_run(run, **place.named).audit())


def _print_report(report: "AuditReport | VerifyReport", as_json: bytes | None = None) -> None:
    if as_json is not None:
        print(as_json.decode())
    else:
        typer.echo(report.table())
        typer.secho(f" {report.verdict}", fg="green" if report.ok else "red")
    for problem in report.problems:
        typer.echo(problem, err=True)
    if not report.ok:
        raise typer.Exit(1)


def verify_command(
    run: NewestRunArgument = "latest",
    games: Annotated[bool, typer.Option("--games/--no-games")] = True,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1)] = 1,
    train: bool = False,
    updates: str = "5",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Recompute a run's steps, ratings and batches from their causes, play its games again, and compare.

    Status 1 if anything differs, with the first differences of each kind on stderr. What the processors of
    a stopped run have yet to do is counted as pending. With --train, updates are trained on again: metrics
    and weights must come out as recorded. Changes nothing.

    Example: unstable-stream verify quickstart-2026 --train --jobs 2

    Args:
        games: Play every recorded game again.
        jobs: Processes that play.
        train: Train on recorded updates again.
        updates: With --train: how many updates, spread over the run, or 'all'.
        as_json: Print the report as one JSON object.
    """
    with progress_bar() as progress:
        report = us.open_run(run, **place.named).verify(
            games=games,
            jobs=jobs,
            train=train,
            updates=_number(updates),
            allow_code=allow_code or [],
            progress=progress,
        )
    for note in report.notes:
        typer.echo(plain(f"note: {note}"), err=True)
    _print_report(report, report.to_json() if as_json else None)


def _number(updates: str) -> int | Literal["all"]:
    if updates == "all":
        return "all"
    if not updates.isdecimal() or int(updates) < 1:
        raise typer.BadParameter(f"{updates!r} is neither a number above 0 nor 'all'", param_hint="--updates")
    return int(updates)


def rerate_command(
    context: typer.Context,
    run: NewestRunArgument = "latest",
    system: str = "trueskill",
    mu: float | None = None,
    sigma: float | None = None,
    beta: float | None = None,
    tau: float | None = None,
    draw_probability: float | None = None,
    inherited_sigma: float | None = None,
    k: float | None = None,
    per_env: bool = False,
    overall: bool = False,
    label: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    source: Literal["archive", "log"] | None = None,
    *,
    place: Place,
    form: Format,
) -> None:
    """Rate a run's games anew and compare with the ratings that were used.

    Without options the parameters are the run's own, and nothing differs. The new ratings, after every game
    and in the end, are stored as Parquet in the data directory, under what-if/RUN/LABEL.

    Example: unstable-stream rerate quickstart-2026 --system elo --k 16

    Args:
        system: How to rate: trueskill, elo, openskill, or an extension.
        mu: Where a model never seen starts.
        sigma: Its uncertainty.
        beta: How much one game says nothing about skill.
        tau: How much skill drifts between games.
        draw_probability: Of equal players, in every environment. Default: the run's.
        inherited_sigma: Uncertainty added when a checkpoint follows its parent.
        k: Elo: the most a game can move a rating.
        per_env: Only within each environment.
        overall: Only over all environments together.
        label: Name of the new set. Default: the system and the options given.
        force: Replace the set of that --label.
        dry_run: Store nothing, only compare.
        source: Where to read outcomes. Default: the archive if there is one.
    """
    from unstable_stream.api.what_if import SYSTEMS, rerate_run

    known = {name for names in SYSTEMS.values() for name in names}
    settings = {name: value for name, value in context.params.items() if name in known and value is not None}
    done, directory = rerate_run(
        place,
        run,
        system=system,
        settings=settings,
        per_env=per_env,
        overall=overall,
        label=label,
        replace=force,
        dry_run=dry_run,
        source=source,
    )
    both = [(name, f"{name}_used") for name in ("rank", "mu", "sigma", "games")]
    columns = ("env_id", *both[0], "model_uid", *both[1], *both[2], *both[3])
    print_objects(done.models, form, columns)
    typer.echo(
        f"{done.games:,} games from the {done.source} in {done.seconds:.1f} s, {done.rated:,} rated; "
        f"{done.changed:,} of {len(done.models):,} ratings differ from those used"
        + ("" if directory is None else f"; the new ones are in {directory}"),
        err=True,
    )


def rederive_command(
    run: RunArgument,
    rewards: Annotated[Path, typer.Option(metavar="TOML")],
    label: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
    form: Format,
) -> None:
    """Shape a run's rewards anew and compare them, stage by stage, with those it was trained on.

    Prints new minus used by stage and role: how many differ, how many change sign, and how they are spread.
    The new rewards and advantages are stored as Parquet in the data directory, under what-if/RUN/LABEL.

    Example: unstable-stream rederive quickstart-2026 --rewards new.toml --label no-baseline

    Args:
        rewards: File whose table `rewards` has the stages to change.
        label: Name of the new set. Default: the file's name without .toml.
        force: Replace the set of that --label.
        dry_run: Store nothing, only compare.
    """
    from unstable_stream.api.what_if import rederive_run

    done, directory = rederive_run(
        place, run, rewards, label=label, replace=force, dry_run=dry_run, allow_code=allow_code or []
    )
    print_objects(done.changes, form)
    typer.echo(
        f"{done.steps:,} steps and {done.updates:,} batches in {done.seconds:.1f} s; the reward of "
        f"{done.differing:,} steps differs from the one used"
        + ("" if directory is None else f"; the new ones are in {directory}"),
        err=True,
    )


def replay_command(
    run: Annotated[str | None, typer.Argument(help="Only this run; named as elsewhere.")] = None,
    topics: Annotated[str | None, typer.Option(metavar="A,B")] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="TIME")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME")] = None,
    ranges: Annotated[list[str] | None, typer.Option("--offsets", metavar="TOPIC[P]@A..B")] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE")] = None,
    speed: str = "max",
    into_log: Annotated[str | None, typer.Option(metavar="LOG")] = None,
    consumer: Annotated[str | None, typer.Option(metavar="PLUGIN")] = None,
    learner: Annotated[Path | None, typer.Option(metavar="TOML")] = None,
    overrides: SetOption = None,
    epochs: Annotated[int, typer.Option(min=1)] = 1,
    source: Literal["log", "archive"] = "log",
    log_id: str | None = None,
    *,
    place: Place,
) -> None:
    """Stream a slice of history in its original order; without a target, as JSON lines.

    Example: unstable-stream replay quickstart-2026 --topics game-outcomes --where split=eval --speed 10

    Args:
        topics: Only these topics.
        start: First time, e.g. 2026-01-31T12:00 (UTC).
        end: The time after the last.
        ranges: Only from offset A to before B; may be repeated.
        where: Only events whose field fits: env=…, model=ckpt-*, split=eval, type!=step; may be repeated.
        speed: 'max', or times as fast as it happened: 1, 10, 0.5.
        into_log: Copy to kafka://HOST:PORT, a .sqlite file or a directory.
        consumer: Give it to a plug-in; print its metrics as JSON lines.
        learner: Train a new run on RUN's steps; what differs in its config.
        epochs: With --learner: times to go through the steps.
        source: Where to read it.
        log_id: Whose records, if the archive holds several logs.
    """
    given = {"--into-log": into_log, "--consumer": consumer, "--learner": learner}
    targets = [name for name, value in given.items() if value]
    if len(targets) > 1:
        raise ConfigError(f"{' and '.join(targets)}: give one of them")
    if learner is None and (overrides or epochs != 1):
        raise ConfigError("--set and --epochs go with --learner")
    from unstable_stream.api.replaying import Replay

    with records_read(
        shown=learner is None and (into_log is not None or not sys.stdout.isatty())
    ) as progress:
        replayed = Replay(
            place,
            run,
            topics=topics.split(",") if topics else (),
            from_ms=None if start is None else parse_moment(start, "--from"),
            to_ms=None if end is None else parse_moment(end, "--to"),
            offsets=ranges or (),
            where=where or (),
            speed=_speed(speed),
            source=source,
            log_id=log_id,
            progress=progress,
        )
        try:
            if learner is not None:
                _train(replayed, learner, overrides or [], epochs)
            elif consumer is not None:
                _rehearse(replayed, consumer)
            elif into_log is not None:
                print(f"{replayed.copy(into_log):,} records copied to {into_log}", file=sys.stderr)
            else:
                replayed.write(_write)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output has gone; there is nobody to tell


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise ConfigError(f"--speed {text!r}: expected max, or a number above 0 such as 1 or 10")
    return speed


def _write(lines: bytes) -> None:
    sys.stdout.buffer.write(lines)
    sys.stdout.buffer.flush()


def _rehearse(replayed: "Replay", target: str) -> None:
    from unstable_stream.api.replaying import encode_event
    from unstable_stream.api.serving import load_plugin

    plugin = load_plugin(target)
    done = replayed.rehearse(
        plugin, lambda metrics: [print(encode_event(event).decode()) for event in metrics]
    )
    print(f"{plugin.name}: {done.handled:,} events, {done.emitted:,} metrics", file=sys.stderr)
    if done.failed:
        print(f"error: it failed at {done.failed:,} events; first: {done.first_failure}", file=sys.stderr)
        raise typer.Exit(1)


def _train(replayed: "Replay", path: Path, overrides: Sequence[str], epochs: int) -> None:
    from unstable_stream.api.replaying import OfflineProgress

    progress = OfflineProgress()
    console = plain_console(stderr=True, highlight=False)
    planned = 0

    def show() -> str:
        if not progress.published:
            return "loading the model"
        return f"{progress.updates:,} of {planned:,} updates, {progress.published:,} steps replayed"

    def start(run_id: str, iterations: int) -> None:
        nonlocal planned
        planned = iterations
        print(f"run {run_id}", file=sys.stderr)

    with console.status(Saying(show)):
        run_id = replayed.train(path, overrides=overrides, epochs=epochs, progress=progress, on_start=start)
    print(f"{run_id}: {progress.updates:,} updates, {progress.published:,} steps replayed", file=sys.stderr)
    print(run_id)


def consume_command(
    plugin: Annotated[str | None, typer.Argument()] = None,
    start: Annotated[str, typer.Option("--from", metavar="WHERE")] = "beginning",
    run: RunOption = None,
    until_end: bool = False,
    reset: bool = False,
    list_all: Annotated[bool, typer.Option("--list")] = False,
    *,
    place: Place,
) -> None:
    """Run a plug-in consumer: all history first, then every event as it comes, until Ctrl-C.

    It goes on where it was when it was stopped or killed. See docs/how-to/consumers.md.

    Example: unstable-stream consume examples/consumers/language_drift.py:repetition --until-end

    Args:
        plugin: module:name, path/to/file.py:name, or a name of --list.
        start: Where to begin if it has never run: beginning, end, or a time such as 2026-01-31T12:00 (UTC).
        until_end: Handle what is there now, then exit.
        reset: Forget where it was and its state; begin at --from.
        list_all: List the plug-ins that installed packages announce.
    """
    from unstable_stream.api.serving import (
        ENTRY_POINTS,
        PluginCounters,
        consume,
        discovered_plugins,
        load_plugin,
    )

    if list_all:
        for each in discovered_plugins():
            print(f"{each.name}\t{each.target}\t{each.package}")
        print(f"packages announce plug-ins in the entry point group {ENTRY_POINTS!r}", file=sys.stderr)
        return
    if plugin is None:
        raise ConfigError(
            "name a plug-in, e.g. unstable-stream consume examples/consumers/language_drift.py:repetition; "
            "--list shows the installed ones"
        )
    named = start in ("beginning", "end")
    begin = cast("Start", start) if named else parse_moment(start, "--from")
    configure_output("consumer")
    loaded = load_plugin(plugin)
    counted = PluginCounters()

    def show() -> str:
        if not counted.position_ms:
            return loaded.name
        moment = datetime.fromtimestamp(counted.position_ms / 1000, tz=UTC)
        done = f"{counted.handled:,} events, {counted.emitted:,} metrics"
        return f"{loaded.name}: {done}, at {moment:%Y-%m-%d %H:%M:%S}"

    console = plain_console(stderr=True, highlight=False)
    with console.status(Saying(show)):
        consume(place, loaded, start=begin, run=run, until_end=until_end, reset=reset, counters=counted)
    print(
        f"{loaded.name}: {counted.handled:,} events, {counted.emitted:,} metrics, "
        f"{counted.rejected:,} set aside",
        file=sys.stderr,
    )
