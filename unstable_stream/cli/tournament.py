"""``unstable-stream tournament``: every player meets every other one, and a ladder of them all."""

from typing import TYPE_CHECKING

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import AllowCodeOption, DataOption, LogOption, SetOption, environment
from unstable_stream.cli.query_output import CsvOption, Format, JsonOption, TableOption, pick_format

if TYPE_CHECKING:
    from unstable_stream.api.run import Run

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tournament", help=_tournament.__doc__)(_tournament)


def _tournament(
    players: list[str] | None = typer.Argument(
        None,
        metavar="PLAYER...",
        help="RUN@UPDATE, or RUN for its newest checkpoint; base, the base model; or an opponent of eval.",
    ),
    games: int = typer.Option(100, "--games", min=2, help="Games of each pair in each environment, even."),
    envs: list[str] | None = typer.Option(
        None,
        "--env",
        metavar="ENV[:TEMPLATE]",
        help="Environment of two seats or more; repeat it for several. Default: those of the evaluation of "
        "the first checkpoint's run.",
    ),
    model: str | None = typer.Option(
        None, "--model", help="The base model, where no checkpoint plays; needed only where it plays itself."
    ),
    seed: int = typer.Option(0, "--seed", help="The same seed plays the same positions, whoever plays."),
    show: str | None = typer.Option(
        None, "--show", metavar="RUN", help="Play nothing: show this tournament again, also while it plays."
    ),
    votes: int = typer.Option(
        1, "--votes", min=1, help="Answers of every policy to each turn; it plays the action of most of them."
    ),
    best_of: int = typer.Option(
        1,
        "--best-of",
        min=1,
        help="Answers of every policy to each turn; it plays the most probable per token.",
    ),
    backend: str = typer.Option("inline", "--backend", help="ray, or inline: in this process."),
    overrides: SetOption = None,
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No live view."),
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    allow_code: AllowCodeOption = None,
) -> None:
    """Let every player meet every other one on fixed seeds, and show who is strongest.

    Each pair plays every seed in both seat orders. It is a run that trains nothing: its games are recorded,
    rated and archived like all others. Ctrl-C stops it, and unstable-stream train --resume RUN goes on with
    the games that are left.

    Example: unstable-stream tournament demo-2026@20 demo-2026@120 base random-legal --games 100
    """
    from unstable_stream.api.run import open_run
    from unstable_stream.api.tournament import tournament
    from unstable_stream.cli.running import print_summary, run_to_end

    # The tables are for people; into a pipe too, unless rows are asked for.
    form = pick_format(as_csv, as_json, as_table or not (as_csv or as_json))
    if show is not None:
        if players:
            raise typer.BadParameter(f"--show {show} plays nothing: leave {' '.join(players)} out")
        run = open_run(show, data, log)
    else:
        run = tournament(
            players or [],
            games=games,
            envs=[environment(env) for env in envs] if envs else None,
            model=model,
            seed=seed,
            votes=votes,
            best_of=best_of,
            data=data,
            log=log,
            overrides=[f"backend={backend}", *(overrides or [])],
            allow_code=allow_code or [],
        )
        run_to_end(run, quiet=quiet, summary=form is Format.TABLE)
    if form is not Format.TABLE:
        _print_rows(run, form)
    elif show is not None:
        print_summary(run)


def _print_rows(run: "Run", form: Format) -> None:
    from unstable_stream.api.standings import COLUMNS, standing_rows
    from unstable_stream.cli.query_output import print_rows

    print_rows(COLUMNS, standing_rows(run.standings()), form)
