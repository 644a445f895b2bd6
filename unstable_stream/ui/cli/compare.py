"""Commands that compare runs."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

import unstable_stream as us
from unstable_stream.api.output import configure_output, plain, plain_console
from unstable_stream.api.place import Place
from unstable_stream.api.summary import numbers_table
from unstable_stream.ui.cli.options import (
    AllowCodeOption,
    DataPlace,
    NewestRunArgument,
    RunArgument,
    RunsArgument,
    SetOption,
    complete_key,
)
from unstable_stream.ui.cli.output import Format, print_objects, print_rows
from unstable_stream.ui.cli.running import evaluation_options

if TYPE_CHECKING:
    from unstable_stream.api.comparing import GroupTable


def diff_command(
    one: RunArgument,
    other: RunArgument,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    *,
    place: DataPlace,
) -> None:
    """Show what differs first between two runs, in the order of causes, and what followed from it.

    Runs are compared by policy version, as far as both went; a fork and its parent from the fork on. Status 1
    if they differ.

    Example: unstable-stream diff quickstart-2026-a quickstart-2026-b

    Args:
        one: The first run.
        other: The second run.
        as_json: Print all of it as one JSON object.
    """
    found = us.diff(one, other, data=place.root)
    if as_json:
        print(found.to_json().decode())
    else:
        columns = ("layer", "compared", "differ", "first difference", "")
        rows = [
            (
                layer.layer,
                layer.compared,
                layer.differing,
                plain(layer.place or ""),
                "first" if layer is found.first else "may follow" if layer.follows else "",
            )
            for layer in found.layers
        ]
        print_rows(columns, rows, Format.TABLE)
        for sentence in found.sentences():
            typer.echo(plain(sentence))
    if found.first is not None:
        raise typer.Exit(1)


def bisect_command(
    context: typer.Context,
    run: NewestRunArgument = "latest",
    metric: str = "",
    sql: str = "",
    command: str = "",
    good: Annotated[int | None, typer.Option(min=0, metavar="UPDATE")] = None,
    bad: Annotated[int | None, typer.Option(min=0, metavar="UPDATE")] = None,
    games: Annotated[int, typer.Option("--games", "-k", min=1)] = 400,
    backend: str = "inline",
    overrides: SetOption = None,
    allow_code: AllowCodeOption = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    *,
    place: Place,
) -> None:
    """Find the update at which a run got worse, in few evaluations, and what is unusual about it.

    Checkpoints play the same games against one opponent until these decide; recorded games count. Status 1
    if nothing fell.

    Example: unstable-stream bisect quickstart-2026 --metric "win rate against random-legal"

    Example: unstable-stream bisect --sql 'SELECT -mean_ratio FROM importance_ratios WHERE update = $update'

    Args:
        metric: "win rate against OPPONENT". Default: the first opponent of the run's evaluation.
        sql: Instead, SQL about this run that returns one number for $update; less is worse.
        command: Instead, a command with {checkpoint}, {path} or {update}: status 0 is good, 125 cannot judge.
        good: An update that was good. Default: the best of the checkpoints that are kept.
        bad: One that is bad. Default: the last.
        games: At most so many games with each checkpoint in each environment.
        backend: ray, or inline: in this process.
        as_json: Print the result as one JSON object.
    """
    configure_output("launcher", level=logging.WARNING)
    how = {"sql": sql, "command": command, "good": good, "bad": bad, "report": _to_stderr}
    found = us.bisect(run, metric, **how, **evaluation_options(context))  # type: ignore[arg-type]
    if as_json:
        print(found.to_json().decode())
    else:
        print_objects(found.measured, Format.TABLE)
        for sentence in found.sentences():
            typer.echo(plain(sentence))
    if found.bad is None:
        raise typer.Exit(1)


def _to_stderr(line: str) -> None:
    typer.echo(plain(line), err=True)


def compare_command(
    runs: RunsArgument = None,
    baseline: Annotated[str | None, typer.Option(metavar="GROUP|RUN")] = None,
    by: Annotated[list[str] | None, typer.Option(metavar="KEY", autocompletion=complete_key)] = None,
    opponent: list[str] | None = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.svg")] = None,
    x: Literal["updates", "games", "tokens", "seconds", "hours"] = "updates",
    metric: str = "win_rate",
    as_json: Annotated[bool, typer.Option("--json")] = False,
    *,
    place: DataPlace,
) -> None:
    """Compare runs in one table: how much each configuration wins, by opponent, and what it spent.

    Runs that differ in the seed alone are one group, and averaged. The name of a sweep names all of its runs.

    Example: unstable-stream compare quickstart-3fa1c2

    Example: unstable-stream compare RUN OTHER_RUN --baseline RUN --picture curves.svg --x tokens

    Args:
        baseline: The group that the others are held against, or one of its runs; by default the first.
        by: Group by this key or section alone; may be given several times.
        opponent: Only evaluations against this opponent; may be given several times.
        csv: Write a row for each run, evaluated policy and opponent.
        picture: Draw the curves of the groups, with bands over their runs.
        x: What the picture's curves are drawn along.
        metric: What the picture shows: win_rate, reward, turns, invalid_rate or truncated_rate of evaluation
            games, or a metric of updates, such as entropy.
        as_json: Print all of it as one JSON object.
    """
    compared = us.compare(
        *runs or (), baseline=baseline, by=by or (), opponents=opponent or (), data=place.root
    )
    if picture:
        compared.write_picture(picture, x, metric)
        print(f"{picture} written", file=sys.stderr)
    if csv:
        compared.write_csv(csv)
        print(f"{csv} written", file=sys.stderr)
    if as_json:
        print(compared.to_json().decode())
        return
    console = plain_console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDEST
    rows = list(_cells(compared.table))
    spent = [name for name in (*_SPENT, "rating") if any(row[name] not in ("", "–") for row in rows)]
    tables = [_table(rows, *_GROUP, *spent, *_WON)]
    if console.measure(tables[0], options=console.options.update(max_width=_WIDEST)).maximum > console.width:
        tables = [_table(rows, *_GROUP, *_WON), _table(rows, *_GROUP, *spent)]
    for table in tables:
        console.print(table)
    for sentence in compared.table.sentences:
        typer.echo(plain(sentence))


_GROUP = ("group", "runs")
_SPENT = ("updates", "games", "tokens", "seconds", "CPU s")
_WIDEST = 500
_WON = ("against", "won (95 %)", "better (95 %)")


def _table(rows: Sequence[Mapping[str, str]], *columns: str) -> Table:
    shown = numbers_table(*columns, names=("group", "against"))
    for cells in rows:
        if cells["group"] or "against" in columns:
            shown.add_row(*(Text(cells[name]) for name in columns))
    return shown


def _cells(table: "GroupTable") -> Iterator[dict[str, str]]:
    """Yield the cells of a row for each group and opponent; what is of the group stands in its first row."""
    several = len({result.env_id for row in table.groups for result in row.results}) > 1
    for row in table.groups:
        own = {"group": row.group, "runs": str(len(row.runs))}
        spent = ("–" if value is None else f"{value:,.0f}" for value in row.spent.values())
        own |= dict(zip(_SPENT, spent, strict=True))
        own["rating"] = "–" if row.rating is None else f"{row.rating:.1f}"
        for result in row.results or (None,):
            cells = dict.fromkeys(_WON, "–")
            if result:
                met = (result.model, result.opponent or "nobody", f"in {result.env_id}" if several else "")
                better = "baseline" if row.group == table.baseline else _shown(result.better, 0)
                won = _shown((result.won, result.low, result.high), 1)
                cells = dict(zip(_WON, (" ".join(filter(None, met)), won, better), strict=True))
            yield own | cells
            own = dict.fromkeys(own, "")


def _shown(found: tuple[float, float | None, float | None] | None, digits: int) -> str:
    """Return a share in percent, with its interval if it has one."""
    if found is None:
        return "–"
    share, low, high = found
    if low is None or high is None:
        return f"{share:.1%}"
    return f"{share:.1%} ({100 * low:.{digits}f}–{100 * high:.{digits}f})"
