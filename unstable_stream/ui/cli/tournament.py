"""``unstable-stream tournament``: every player meets every other one, and a ladder of them all."""

from typing import TYPE_CHECKING, Annotated

import typer

from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import AllowCodeOption, QuietOption, SetOption
from unstable_stream.ui.cli.query_output import CsvOption, Format, JsonOption, TableOption, pick_format

if TYPE_CHECKING:
    from unstable_stream.api.run import Run


def command(
    context: typer.Context,
    players: Annotated[list[str] | None, typer.Argument(metavar="PLAYER...")] = None,
    games: Annotated[int, typer.Option(min=2)] = 100,
    envs: Annotated[list[str] | None, typer.Option("--env", metavar="ENV[:TEMPLATE]")] = None,
    model: str | None = None,
    seed: int = 0,
    show: Annotated[str | None, typer.Option(metavar="RUN")] = None,
    votes: Annotated[int, typer.Option(min=1)] = 1,
    best_of: Annotated[int, typer.Option(min=1)] = 1,
    backend: str = "inline",
    overrides: SetOption = None,
    quiet: QuietOption = False,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
    allow_code: AllowCodeOption = None,
    *,
    place: Place,
) -> None:
    """Let every player meet every other one on fixed seeds, and show who is strongest.

    Each pair plays every seed in both seat orders. It is a run that trains nothing: its games are recorded,
    rated and archived like all others. Ctrl-C stops it, and unstable-stream train --resume RUN goes on with
    the games that are left.

    Example: unstable-stream tournament demo-2026@20 demo-2026@120 base random-legal --games 100

    Args:
        players: RUN@UPDATE, or RUN for its newest checkpoint; base, the base model; or an opponent of eval.
        games: Games of each pair in each environment, even.
        envs: Environment of two seats or more; repeat it for several. Default: those of the evaluation of
            the first checkpoint's run.
        model: The base model, where no checkpoint plays; needed only where it plays itself.
        seed: The same seed plays the same positions, whoever plays.
        show: Play nothing: show this tournament again, also while it plays.
        votes: Answers of every policy to each turn; it plays the action of most of them.
        best_of: Answers of every policy to each turn; it plays the most probable per token.
        backend: ray, or inline: in this process.
    """
    from unstable_stream.api.run import open_run
    from unstable_stream.api.tournament import tournament
    from unstable_stream.ui.cli.running import evaluation_options, print_summary, run_to_end

    # The tables are for people; into a pipe too, unless rows are asked for.
    form = pick_format(as_csv, as_json, as_table or not (as_csv or as_json))
    if show is not None:
        if players:
            raise typer.BadParameter(f"--show {show} plays nothing: leave {' '.join(players)} out")
        run = open_run(show, place.root, place.log)
    else:
        run = tournament(players or [], model=model, **evaluation_options(context))
        run_to_end(run, quiet=quiet, summary=form is Format.TABLE)
    if form is not Format.TABLE:
        _print_rows(run, form)
    elif show is not None:
        print_summary(run)


def _print_rows(run: "Run", form: Format) -> None:
    from unstable_stream.api.standings import COLUMNS, standing_rows
    from unstable_stream.ui.cli.query_output import print_rows

    print_rows(COLUMNS, standing_rows(run.standings()), form)
