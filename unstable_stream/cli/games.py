"""``unstable-stream games``: find games and read them."""

from enum import StrEnum
from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption
from unstable_stream.cli.query_output import (
    CsvOption,
    Format,
    JsonOption,
    TableOption,
    pick_format,
    print_rows,
)

__all__ = ["register"]

_SHORT_ID = 8


class Split(StrEnum):
    """Which games."""

    TRAIN = "train"
    EVAL = "eval"


class Result(StrEnum):
    """How a seat did."""

    WIN = "win"
    DRAW = "draw"
    LOSS = "loss"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(invoke_without_command=True)
    group.callback(help=_list.__doc__)(_list)
    group.command("show", help=_show.__doc__)(_show)
    app.add_typer(group, name="games")


def _list(
    context: typer.Context,
    run: str | None = typer.Option(None, "--run", help="Run id, or its beginning."),
    split: Split | None = typer.Option(None, "--split", help="Only games of this split."),
    env: str | None = typer.Option(None, "--env", help="Only games of environments with this in the name."),
    model: str | None = typer.Option(None, "--model", help="Only games this model played in."),
    result: Result | None = typer.Option(
        None, "--result", help="How it ended for the --model, or without one for any checkpoint."
    ),
    invalid: bool = typer.Option(False, "--invalid", help="Only games with an invalid move."),
    limit: int = typer.Option(20, "--limit", "-n", min=1, help="At most so many, the latest."),
    data: DataOption = Path("unstable-data"),
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
) -> None:
    """List games, the latest first; 'games show ID' tells one move by move.

    Example: unstable-stream games --split eval --model ckpt-000012 --result loss

    Example: unstable-stream games show 3f2a9c1e
    """
    if context.invoked_subcommand is not None:
        return
    from unstable_stream.archive import query

    form = pick_format(as_csv, as_json, as_table)
    seat_conditions = ["s.game_id = g.game_id"]
    conditions: list[str] = []
    values: dict[str, object] = {"limit": limit}

    def require(condition: str, **value: object) -> None:
        conditions.append(condition)
        values.update(value)

    if run is not None:
        require("starts_with(g.run_id, $run)", run=run)
    if split is not None:
        require("g.split = $split", split=split.value)
    if env is not None:
        require("contains(lower(g.env_id), lower($env))", env=env)
    if model is not None:
        require("list_contains(g.models, $model)", model=model)
    if result is not None:
        seat_conditions.append("s.result = $result")
        seat_conditions.append("s.kind = 'checkpoint'" if model is None else "s.model_uid = $model")
        require(f"EXISTS (FROM seats AS s WHERE {' AND '.join(seat_conditions)})", result=result.value)
    if invalid:
        require(
            "(g.invalid_seat IS NOT NULL OR "
            "EXISTS (FROM seats AS s WHERE s.game_id = g.game_id AND s.invalid_moves > 0))"
        )
    found = query(
        data / "archive.duckdb",
        "SELECT g.game_id AS game, g.run_id AS run, g.split, g.game_index AS number, g.env_id AS env, "
        "array_to_string(g.models, ' – ') AS seats, "
        "CASE WHEN g.state <> 'finished' THEN g.state ELSE coalesce(g.winner, 'nobody') END AS winner, "
        "g.reason, g.num_turns AS moves, coalesce(g.ended_at, g.started_at) AS ended FROM games AS g "
        f"{'WHERE ' + ' AND '.join(conditions) if conditions else ''} "
        "ORDER BY ended DESC, run, split, number DESC LIMIT $limit",
        values,
    )
    rows = found.rows
    if form is Format.TABLE:
        rows = [(game[:_SHORT_ID], *rest) for game, *rest in rows]
    print_rows(found.columns, rows, form)


def _show(
    game: str = typer.Argument(..., help="The game's id, or enough of its beginning."),
    data: DataOption = Path("unstable-data"),
    as_json: bool = typer.Option(False, "--json", help="Print the transcript as one JSON object."),
) -> None:
    """Tell one game move by move: what each model saw, wrote and did, and how it ended.

    Example: unstable-stream games show 3f2a9c1e
    """
    from unstable_stream.archive.transcript import load_transcript

    transcript = load_transcript(data / "archive.duckdb", game)
    if as_json:
        import msgspec

        print(msgspec.json.encode(transcript).decode())
        return
    from rich.console import Console

    from unstable_stream.cli.game_transcript import render

    Console(highlight=False).print(render(transcript))
