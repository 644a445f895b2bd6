"""Commands that look: at runs, games and what the archive has of them, by SQL, in a browser, as a page."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import unstable_stream as us
from unstable_stream.api.game_filter import GameFilter, Result, Sort, Split, State
from unstable_stream.api.output import configure_output, plain, plain_console
from unstable_stream.api.place import DEFAULT_DATA_DIR, Place
from unstable_stream.ui.cli.options import (
    DataOption,
    DataPlace,
    LimitOption,
    LogOption,
    NewestRunArgument,
    OptionalLogOption,
    RunArgument,
    RunOption,
)
from unstable_stream.ui.cli.output import (
    Format,
    print_objects,
    print_rows,
    records_read,
    take_rows,
)

if TYPE_CHECKING:
    from unstable_stream.api.runs import ListedRun

_SHORT_ID = 8


def runs_command(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="[WORD]...")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a")] = False,
    sort: Literal["started", "games", "updates", "win_rate"] = "started",
    limit: LimitOption = None,
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    *,
    form: Format,
) -> None:
    """List the runs that train, newest first, with what each one's latest evaluated checkpoint won of the
    opponent that tells most, whom it beats most nearly half of the time; in brackets the 95 % interval.

    No number mixes opponents: win rates of two runs compare only where the opponent is the same. --csv and
    --json have more, as CPU- and GPU-seconds of all processes; the view run_costs has the whole cost.

    A run that has not ended and has recorded nothing for ten minutes is lost: resume it. What a run is for is
    the key note of its configuration: --set note="a higher rate".

    Asks the archive; with --log, or where there is no archive, the log, which knows no games and win rates.

    Example: unstable-stream runs tak completed

    Example: unstable-stream runs --all --sort win_rate --limit 5

    Args:
        words: Only runs with each of these words in id, name, state or note.
        everything: Also evaluations, tournaments, games of people, and runs that were dropped.
        sort: Which come first: the newest, or those with most.
    """
    from unstable_stream.api.runs import ListedRun, chosen_runs, listed_runs

    source = context.get_parameter_source("log")
    asked_for = source is not None and source.name == "COMMANDLINE"
    place = Place.at(data, log)
    from_log = asked_for or (not place.has_archive and (log is not None or place.data.log.is_file()))
    every = listed_runs(place, from_log=from_log)
    runs = chosen_runs([run for run in every if run.trains or everything], words or (), sort)[:limit]
    hidden = sum(not run.trains for run in every)
    if form is Format.TABLE:
        print_rows(_RUN_COLUMNS, map(_run_cells, runs), form)
        if hidden and not everything:
            print(f"{hidden} that do not train, or were dropped, are not shown: --all", file=sys.stderr)
    else:
        print_rows(ListedRun._fields, runs, form)


_RUN_COLUMNS = ("#", "run", "state", "games", "updates", "won %")


def _run_cells(run: "ListedRun") -> tuple[Any, ...]:
    """Return what fits a terminal of 80 columns: the id has name and time in it."""
    told = f"{run.run} {run.note}" if run.note else run.run
    return run.number, told, f"{run.state}\n{run.silence or ''}".strip(), run.games, run.updates, run.won


def games_command(
    context: typer.Context,
    run: RunOption = None,
    split: Split | None = None,
    state: State | None = None,
    env: str | None = None,
    model: str | None = None,
    opponent: str | None = None,
    seat: Annotated[int | None, typer.Option(min=0)] = None,
    result: Result | None = None,
    update: Annotated[int | None, typer.Option(min=1)] = None,
    invalid: bool = False,
    truncated: bool = False,
    min_moves: Annotated[int | None, typer.Option(min=0)] = None,
    max_moves: Annotated[int | None, typer.Option(min=0)] = None,
    sort: Sort = "latest",
    limit: LimitOption = 20,
    *,
    place: DataPlace,
    form: Format,
) -> None:
    """List games, the latest first; 'games show ID' tells one move by move.

    Example: unstable-stream games --split eval --model ckpt-000012 --result loss

    Example: unstable-stream games --invalid --sort longest

    Example: unstable-stream games show 3f2a9c1e

    Args:
        split: Only games of this split.
        state: Only games that got so far.
        env: Only games of environments with this in the name.
        model: Only games this model played in; a pattern may stand for it.
        opponent: Only games in which the --model, or any checkpoint, met this one.
        seat: Only games in which the --model, or any checkpoint, had this seat.
        result: How it ended for the --model, or without one for any checkpoint.
        update: Only games with a step that this learner update trained on or dropped.
        invalid: Only games with an invalid move.
        truncated: Only games that were cut short, or with a completion that was.
        min_moves: Only games of so many moves.
        max_moves: Only games of at most so many.
        sort: Which come first; tokens: most sampled tokens.
    """
    if context.invoked_subcommand is not None:
        return
    from unstable_stream.api.archived import find_runs
    from unstable_stream.api.games import find_games

    if run is not None:
        (run,) = find_runs(place.archive, [run])
    wanted = {name: value for name, value in context.params.items() if name in GameFilter.__annotations__}
    found = find_games(place.archive, run=run, **wanted)
    if form is Format.TABLE:
        print_rows(*_narrow(found.columns, found.rows), form)
    else:
        print_rows(found.columns, found.rows, form)


def _narrow(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[list[str], list[list[Any]]]:
    """Return what fits a line of a terminal; what all games share is said once. ``Any``: columns' values."""
    shared = [
        name
        for place, name in enumerate(columns)
        if name in ("run", "split", "env") and len({row[place] for row in rows}) == 1
    ]
    if shared:
        said = ", ".join(f"{name} {rows[0][columns.index(name)]}" for name in shared)
        print(plain(f"all: {said}"), file=sys.stderr)
    kept = [place for place, name in enumerate(columns) if name not in shared]
    narrowed = [[_narrow_cell(columns[place], row[place]) for place in kept] for row in rows]
    return [columns[place] for place in kept], narrowed


def _narrow_cell(name: str, value: Any) -> Any:
    """``Any``: a column's value."""
    if name == "game":
        return value[:_SHORT_ID]
    if name == "ended" and value is not None:
        return value.replace(microsecond=0)
    return value


def games_show(
    game: str,
    tokens: bool = False,
    prompts: bool = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    *,
    place: DataPlace,
) -> None:
    """Tell one game move by move: what each model saw, wrote and did, its rewards, and how it ended.

    Example: unstable-stream games show 3f2a9c1e --tokens

    Args:
        game: The game's id, or enough of its beginning.
        tokens: Show each sampled token with its log-probability in nats.
        prompts: Show what the engine was given, word for word.
        as_json: Print the transcript as one JSON object.
    """
    from unstable_stream.api.games import load_transcript, shown_game

    transcript = load_transcript(place.archive, game)
    if as_json:
        import msgspec

        print(msgspec.json.encode(transcript).decode())
        return
    shown = shown_game(place.archive, transcript, tokens=tokens, prompts=prompts)
    plain_console(highlight=False).print(shown)


def ui_command(
    data: Annotated[list[Path], typer.Option(envvar="UNSTABLE_STREAM_DATA")] = [DEFAULT_DATA_DIR],  # noqa: B006  # Typer copies it
    log: LogOption = "local",
    host: str = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
    name: list[str] | None = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser")] = True,
) -> None:
    """Show runs, games and what-ifs as live pages in a browser, until Ctrl-C.

    Who has the printed link can look; nobody else. It listens on this machine alone, loads nothing from a
    network, and can be opened while runs train.

    Example: unstable-stream ui

    Example: unstable-stream ui --data monday --data tuesday --port 9000 --no-browser

    Args:
        data: Data directory with the archive; give it several times to see several.
        host: Address to listen on.
        port: Port; 0 takes a free one. By default 8787, or a free one.
        name: A name by which browsers may call this machine, besides its address.
        browser: Open the page in a browser.
    """
    from unstable_stream.ui.web import serve

    serve(
        [Place.at(each, log) for each in data],
        host=host,
        port=port,
        names=name or [],
        browser=browser,
        on_ready=lambda link: typer.echo(f"open {link}\nCtrl-C ends it."),
    )


def why_command(
    wanted: Annotated[str | None, typer.Argument(metavar="[ID]")] = None,
    update: Annotated[int | None, typer.Option(min=1)] = None,
    run: RunOption = None,
    depth: Annotated[int | None, typer.Option(min=1, max=20)] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 3,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    *,
    place: DataPlace,
) -> None:
    """Walk from a gradient step back to games, tokens, adapters and seeds, and from a game on to updates.

    Example: unstable-stream why --update 5

    Example: unstable-stream why 3f2a9c1e --depth 2

    Args:
        wanted: A step, game, trajectory, checkpoint, run or any event: its id or the beginning of it; or
            RUN:update:N, or RUN:CHECKPOINT.
        update: This learner update, instead of an id.
        depth: How many hops to go in each direction; otherwise 2, and 3 ahead from a game or trajectory.
        limit: Show so many of each list, and say how many there are.
        as_json: Print all of it, tokens included, as one JSON object.
    """
    if (wanted is None) == (update is None):
        raise typer.BadParameter("give one id, e.g. unstable-stream why 3f2a9c1e; or --update 5")
    from unstable_stream.api.why import find_why

    name = wanted or f"update:{update}"
    found = find_why(place, name, run=run or "", depth=depth, limit=None if as_json else limit)
    if as_json:
        print(found.to_json().decode())
    else:
        found.show()


def sql_command(
    statement: Annotated[str | None, typer.Argument(metavar="SQL")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f")] = None,
    tables: bool = False,
    examples: bool = False,
    write: bool = False,
    files: bool = False,
    *,
    place: DataPlace,
    form: Format,
) -> None:
    """Query every game, turn, step, rating and update, also while a run trains. Without a query, list tables.

    Example: unstable-stream sql "SELECT policy_version, win_rate FROM learning_curve ORDER BY 1"

    Example: unstable-stream sql --file question.sql --csv > answer.csv

    Example: unstable-stream sql --files "COPY (FROM turns) TO 'turns.parquet'"

    Args:
        statement: The query; '-' reads it from stdin.
        file: Read the query from a file.
        tables: List tables and views with their columns.
        examples: Print useful queries.
        write: Allow changes to the archive.
        files: Let the query read and write other files.
    """
    if tables or (statement is None and file is None and not examples):
        _print_relations()
    elif examples:
        _print_examples()
    else:
        from unstable_stream.api.archived import stream

        with stream(place.archive, _statement(statement, file), write=write, files=files) as result:
            print_them = take_rows(result.columns, result.rows, form)
        if result.missing:
            print(
                "note: the log deleted records before they were archived, by topic and offsets: "
                f"{', '.join(result.missing)}. See missing_records, and missing_of_runs",
                file=sys.stderr,
            )
        print_them()


def _statement(statement: str | None, file: Path | None) -> str:
    if statement is not None and file is not None:
        raise typer.BadParameter("give one query: as an argument, or with --file")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {file}: {error}") from error
    return sys.stdin.read() if statement == "-" else statement or ""


def _print_relations() -> None:
    from rich.padding import Padding
    from rich.text import Text

    from unstable_stream.api.archived import relations

    console = plain_console()
    for relation in relations():
        console.print(Text.assemble((relation.name, "bold"), f" ({relation.kind}): ", relation.doc))
        console.print(Padding(Text(", ".join(relation.columns), style="dim"), (0, 0, 0, 4)))
    print(
        'docs/reference/archive.md explains the columns. Ask: unstable-stream sql "SELECT * FROM runs"',
        file=sys.stderr,
    )


def _print_examples() -> None:
    from unstable_stream.api.archived import EXAMPLES

    for example in EXAMPLES:
        print(f"-- {example.question}\n{example.sql};\n")


def collapse_command(run: NewestRunArgument = "latest", *, place: Place) -> None:
    """Look at a run's updates for signs of a collapse; status 1 and the way back if there are any.

    The learner does the same while it trains; here the rules are applied to any recorded run.

    Example: unstable-stream collapse quickstart-2026
    """
    found = us.open_run(run, **place.named).collapse()
    for sentence in found.advice:
        typer.secho(plain(sentence), fg="yellow")
    if found.warnings:
        raise typer.Exit(1)
    typer.echo(f"no sign of a collapse in {found.updates} updates")


def doctor_command(as_json: Annotated[bool, typer.Option("--json")] = False, *, place: Place) -> None:
    """Look whether this machine has what a run needs, with a remedy for what is missing; status 1 if the
    quickstart lacks something.

    Example: unstable-stream doctor

    Example: unstable-stream doctor --json --log kafka://127.0.0.1:9092

    Args:
        as_json: Print all of it as a JSON array, e.g. for a bug report.
    """
    from unstable_stream.api.doctor import examine

    checks = examine(place)
    if as_json:
        print_objects(checks, Format.JSON)
    else:
        colours = {"ok": "green", "warn": "yellow", "fail": "red"}
        for check in checks:
            state = typer.style(f"{check.state:<4}", fg=colours[check.state])
            typer.echo(f"{state}  {check.name:<18}  {plain(check.found)}")
            if check.remedy:
                typer.echo(f"{'':<26}{check.remedy}")
    if any(check.state == "fail" for check in checks):
        raise typer.Exit(1)


def track_command(
    run: RunArgument,
    to: Annotated[str, typer.Option(metavar="TRACKER")],
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
    source: Literal["log", "archive"] = "log",
    *,
    place: Place,
) -> None:
    """Give a run, live or finished, to TensorBoard, W&B, MLflow, OpenTelemetry, OpenLineage or a file.

    Called again, it goes on where it was and writes nothing twice. See docs/how-to/standards.md.

    Example: unstable-stream track quickstart-2026 --to tensorboard --out curves

    Args:
        to: Metrics: jsonl, tensorboard, mlflow, 'wandb(project="UB", mode="offline")', path/to/file.py:Name.
            Traces: 'otel(endpoint="http://127.0.0.1:4318")'. Lineage: openlineage.
        out: Write to OUT/RUN, a directory; by default to tracking/RUN in the data directory.
        follow: Go on until the run ends.
        source: Where to read them.
    """
    from unstable_stream.api.replaying import track_run

    configure_output("tracker")
    try:
        with records_read() as progress:
            done = track_run(place, run, to, out, follow=follow, source=source, progress=progress)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        raise typer.Exit(130) from None
    home = (place.data.root / "tracking" if out is None else out) / done.run_id
    known = f", {done.known:,} were there before" if done.known else ""
    given = f"{done.given:,} {done.unit} up to update {done.update:,}{known}"
    print(f"{done.run_id}: {given}; {home}", file=sys.stderr)
    if to == "tensorboard" or to.startswith("tensorboard("):
        print(f"look at it: tensorboard --logdir {home.parent}", file=sys.stderr)


def monitor_command(
    port: Annotated[int, typer.Option(min=0, max=65535)] = 9108,
    host: str = "127.0.0.1",
    start: Annotated[Literal["beginning", "end"], typer.Option("--from")] = "beginning",
    *,
    place: Place,
) -> None:
    """Serve Prometheus metrics of a log: lag, throughput, dead letters, learner updates, services. See
    docs/how-to/monitoring.md.

    Example: unstable-stream monitor --port 9108 --log kafka://127.0.0.1:9092

    Args:
        port: Port to serve on; 0 takes a free one.
        host: Address to serve on; 0.0.0.0 for all.
        start: Count all the log holds, or only what comes from now on.
    """
    from unstable_stream.api.serving import monitor

    configure_output("monitor")

    def say(listening_on: int) -> None:
        print(f"serving http://{host}:{listening_on}/metrics", file=sys.stderr, flush=True)

    monitor(place, port=port, host=host, start=start, on_ready=say)
