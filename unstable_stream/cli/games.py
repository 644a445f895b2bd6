"""``unstable-stream games``: find games and read them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from unstable_stream.views.transcript import Transcript

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


class State(StrEnum):
    """How far a game got."""

    FINISHED = "finished"
    ABANDONED = "abandoned"
    IN_FLIGHT = "in-flight"


class Sort(StrEnum):
    """Which games come first."""

    LATEST = "latest"
    EARLIEST = "earliest"
    LONGEST = "longest"
    SHORTEST = "shortest"
    TOKENS = "tokens"


_TOKENS = "(SELECT sum(completion_tokens) FROM trajectories AS t WHERE t.game_id = g.game_id)"
_ORDER = {
    Sort.LATEST: "ended DESC, run, split, number DESC",
    Sort.EARLIEST: "ended, run, split, number",
    Sort.LONGEST: "moves DESC NULLS LAST, run, split, number",
    Sort.SHORTEST: "moves NULLS LAST, run, split, number",
    Sort.TOKENS: "tokens DESC NULLS LAST, run, split, number",
}


@dataclass
class _Filter:
    """Conditions on the games ``g``, all of which must hold."""

    conditions: list[str] = field(default_factory=list)
    values: dict[str, object] = field(default_factory=dict)

    def require(self, wanted: bool, condition: str, **values: object) -> None:
        if wanted:
            self.conditions.append(condition)
            self.values.update(values)

    def require_seat(self, conditions: Sequence[str], **values: object) -> None:
        """Require one seat of the game for which all ``conditions`` hold, if there are any."""
        if conditions:
            seat = " AND ".join(["s.game_id = g.game_id", *conditions])
            self.require(True, f"EXISTS (FROM players AS s WHERE {seat})", **values)

    def where(self) -> str:
        return f"WHERE {' AND '.join(self.conditions)}" if self.conditions else ""


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
    state: State | None = typer.Option(None, "--state", help="Only games that got so far."),
    env: str | None = typer.Option(None, "--env", help="Only games of environments with this in the name."),
    model: str | None = typer.Option(None, "--model", help="Only games this model played in."),
    opponent: str | None = typer.Option(
        None, "--opponent", help="Only games in which the --model, or any checkpoint, met this one."
    ),
    seat: int | None = typer.Option(
        None, "--seat", min=0, help="Only games in which the --model, or any checkpoint, had this seat."
    ),
    result: Result | None = typer.Option(
        None, "--result", help="How it ended for the --model, or without one for any checkpoint."
    ),
    update: int | None = typer.Option(
        None, "--update", min=1, help="Only games with a step that this learner update trained on or dropped."
    ),
    invalid: bool = typer.Option(False, "--invalid", help="Only games with an invalid move."),
    truncated: bool = typer.Option(
        False, "--truncated", help="Only games that were cut short, or with a completion that was."
    ),
    min_moves: int | None = typer.Option(None, "--min-moves", min=0, help="Only games of so many moves."),
    max_moves: int | None = typer.Option(None, "--max-moves", min=0, help="Only games of at most so many."),
    sort: Sort = typer.Option(Sort.LATEST, "--sort", help="Which come first; tokens: most sampled tokens."),
    limit: int = typer.Option(20, "--limit", "-n", min=1, help="At most so many, the first by --sort."),
    browse: bool = typer.Option(False, "--browse", help="Read them one after the other, by key."),
    data: DataOption = DEFAULT_DATA_DIR,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
) -> None:
    """List games, the latest first; 'games show ID' tells one move by move.

    Example: unstable-stream games --split eval --model ckpt-000012 --result loss

    Example: unstable-stream games --invalid --sort longest --browse

    Example: unstable-stream games show 3f2a9c1e
    """
    if context.invoked_subcommand is not None:
        return
    from unstable_stream.archive import query

    form = pick_format(as_csv, as_json, as_table)
    wanted = _Filter(values={"limit": limit})
    wanted.require(run is not None, "starts_with(g.run_id, $run)", run=run)
    wanted.require(split is not None, "g.split = $split", split=split and split.value)
    wanted.require(state is not None, "g.state = $state", state=state and state.value)
    wanted.require(env is not None, "contains(lower(g.env_id), lower($env))", env=env)
    wanted.require(model is not None, "list_contains(g.models, $model)", model=model)
    wanted.require(min_moves is not None, "g.num_turns >= $min_moves", min_moves=min_moves)
    wanted.require(max_moves is not None, "g.num_turns <= $max_moves", max_moves=max_moves)
    wanted.require(
        update is not None,
        "g.game_id IN (SELECT game_id FROM steps WHERE step_id IN "
        "(SELECT step_id FROM update_steps WHERE update = $update AND starts_with(run_id, $update_run)))",
        update=update,
        update_run=run or "",
    )
    wanted.require(
        invalid,
        "(g.invalid_seat IS NOT NULL OR "
        "EXISTS (FROM seats AS s WHERE s.game_id = g.game_id AND s.invalid_moves > 0))",
    )
    wanted.require(
        truncated,
        "(g.reason = 'truncated' OR "
        "g.game_id IN (SELECT game_id FROM turns AS t WHERE t.finish_reason = 'length'))",
    )
    of_seat = {
        "s.result = $result": result and result.value,
        "s.seat = $seat": seat,
        "list_contains(string_split(s.opponent, ', '), $opponent)": opponent,
    }
    asked = {condition: value for condition, value in of_seat.items() if value is not None}
    if asked:
        who = "s.kind = 'checkpoint'" if model is None else "s.model_uid = $model"
        names = {condition: condition.rpartition("$")[2].rstrip(")") for condition in asked}
        wanted.require_seat([*asked, who], **{names[condition]: value for condition, value in asked.items()})
    found = query(
        data / "archive.duckdb",
        f"WITH players AS ({_PLAYERS}) "
        "SELECT g.game_id AS game, g.run_id AS run, g.split, g.game_index AS number, g.env_id AS env, "
        "array_to_string(g.models, ' – ') AS seats, "
        "CASE WHEN g.state <> 'finished' THEN g.state ELSE coalesce(g.winner, 'nobody') END AS winner, "
        f"g.reason, g.num_turns AS moves, {_TOKENS} AS tokens, "
        f"coalesce(g.ended_at, g.started_at) AS ended FROM games AS g {wanted.where()} "
        f"ORDER BY {_ORDER[sort]} LIMIT $limit",
        wanted.values,
    )
    rows = found.rows
    if browse:
        _browse(data, [row[0] for row in rows])
        return
    if form is Format.TABLE:
        print_rows(*_narrow(found.columns, rows), form)
    else:
        print_rows(found.columns, rows, form)


def _narrow(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> tuple[list[str], list[list[Any]]]:
    """Return what fits a line of a terminal; what all games share is said once. ``Any``: columns' values."""
    shared = [
        name
        for place, name in enumerate(columns)
        if name in ("run", "split", "env") and len({row[place] for row in rows}) == 1
    ]
    if shared:
        print(
            "all: " + ", ".join(f"{name} {rows[0][columns.index(name)]}" for name in shared), file=sys.stderr
        )
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


# Games that are not over have no results, but they have seats.
_PLAYERS = """
SELECT game_id, seat, model_uid, kind, opponent, result FROM seats
UNION ALL
SELECT p.game_id, p.seat, p.model_uid, p.kind, array_to_string(list_sort(list(o.model_uid)), ', '), NULL
FROM planned_seats AS p
LEFT JOIN planned_seats AS o ON o.game_id = p.game_id AND o.seat <> p.seat
WHERE p.game_id NOT IN (SELECT game_id FROM game_outcomes)
GROUP BY p.game_id, p.seat, p.model_uid, p.kind
"""


def _show(
    game: str = typer.Argument(..., help="The game's id, or enough of its beginning."),
    data: DataOption = DEFAULT_DATA_DIR,
    tokens: bool = typer.Option(
        False, "--tokens", help="Show each sampled token with its log-probability in nats."
    ),
    prompts: bool = typer.Option(False, "--prompts", help="Show what the engine was given, word for word."),
    pager: bool = typer.Option(False, "--pager", help="Page through it ($PAGER, or less)."),
    as_json: bool = typer.Option(False, "--json", help="Print the transcript as one JSON object."),
) -> None:
    """Tell one game move by move: what each model saw, wrote and did, its rewards, and how it ended.

    Example: unstable-stream games show 3f2a9c1e --tokens
    """
    from unstable_stream.views.transcript import load_transcript

    transcript = load_transcript(data / "archive.duckdb", game)
    if as_json:
        import msgspec

        print(msgspec.json.encode(transcript).decode())
        return
    from rich.console import Console

    from unstable_stream.cli.game_transcript import render

    console = Console(highlight=False)
    shown = render(transcript, texts=_token_texts(data, transcript) if tokens else None, prompts=prompts)
    if not pager:
        console.print(shown)
        return
    # Without colours less would need -R, which not everyone's pager has.
    with console.pager(styles=console.is_terminal):
        console.print(shown)


def _token_texts(data: Path, transcript: "Transcript") -> dict[int, Sequence[str]]:
    """Return the tokens' texts by game turn: of checkpoints' moves, if their tokenizer is on this machine."""
    from unstable_stream.archive import query
    from unstable_stream.inference.token_texts import token_texts, tokenizer_on_disk

    models = query(
        data / "archive.duckdb",
        "SELECT any_value(base_model) FROM checkpoints WHERE run_id = ?",
        [transcript.run_id],
    ).rows
    tokenizer = tokenizer_on_disk(models[0][0] or "")
    if tokenizer is None:
        return {}
    own = {line.seat for line in transcript.seats if line.kind == "checkpoint"}
    return {
        move.game_turn: token_texts(tokenizer, move.token_ids)
        for move in transcript.moves
        if move.seat in own and move.token_ids
    }


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _browse(data: Path, games: Sequence[str]) -> None:
    """Show one game at a time; keys go on, back, or end."""
    import click
    from rich.console import Console

    from unstable_stream.cli.game_transcript import render
    from unstable_stream.views.transcript import load_transcript

    if not _is_terminal():
        raise typer.BadParameter("--browse needs a terminal to read keys from; 'games show ID' does not")
    console = Console(highlight=False)
    if not games:
        console.print("no such games")
        return
    place = 0
    while True:
        console.clear()
        console.print(render(load_transcript(data / "archive.duckdb", games[place])))
        console.print(f"game {place + 1} of {len(games)} · n next · p previous · q quit", style="reverse")
        key = click.getchar()
        if key in ("q", "\x1b", "\x03", "\x04"):
            return
        if key in ("n", " ", "\r", "\x1b[C", "\x1b[B"):
            place = min(place + 1, len(games) - 1)
        elif key in ("p", "\x7f", "\x1b[D", "\x1b[A"):
            place = max(place - 1, 0)
