"""Declare the tables of games: those started, abandoned and finished, their seats and every move."""

from unstable_stream.archive.tables.declare import Column, Item, TableDefinition, columns_of, items_of
from unstable_stream.events import (
    Action,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    Seat,
    SeatResult,
    are_partners,
)


def seat_result(seat: SeatResult, seats: tuple[SeatResult, ...]) -> str:
    """Return ``win``, ``draw`` or ``loss`` for one seat.

    Best rank and somebody ranked worse is a win (so a whole team can win), all ranks equal is a draw. Alone
    at the table there is nobody to outrank: the sign of the reward decides.
    """
    if len(seats) == 1:
        return "win" if seat.reward > 0 else "loss" if seat.reward < 0 else "draw"
    if all(other.rank == seat.rank for other in seats):
        return "draw"
    return "win" if seat.rank == min(other.rank for other in seats) else "loss"


def _winner(outcome: GameOutcome) -> str | None:
    winners = [seat.model_uid for seat in outcome.seats if seat_result(seat, outcome.seats) == "win"]
    return " + ".join(winners) or None


def _models(event: GameStarted | GameOutcome) -> list[str]:
    return [seat.model_uid for seat in event.seats]


def _result(row: Item) -> str:
    return seat_result(row.item, row.event.seats)


def _opponent(row: Item) -> str | None:
    others = [seat.model_uid for seat in row.event.seats if not are_partners(seat, row.item)]
    return ", ".join(sorted(others)) or None


def _counts(row: Item) -> bool:
    """Return whether a seat is its model's first in its team: the team plays one game, not several."""
    same = [each for each in row.event.seats if each.model_uid == row.item.model_uid]
    return bool(min(each.seat for each in same if are_partners(each, row.item)) == row.item.seat)


def _finish_reason(row: Item) -> str | None:
    reasons = row.event.finish_reasons
    return reasons[row.place] if row.place < len(reasons) else None


_MODELS = Column("models", "VARCHAR[]", "Model uids in seat order.", _models)

TABLES = (
    TableDefinition(
        "game_starts",
        "Games decided on, one row each.",
        (GameStarted,),
        columns_of(GameStarted, renamed={"occurred_at_ms": "started_at"}, computed=[_MODELS]),
    ),
    TableDefinition(
        "planned_seats",
        "Who was to play each seat, one row per game and seat, also of games that never finished.",
        (GameStarted,),
        (
            *columns_of(GameStarted, of="event", only=("run_id", "game_id", "split", "env_id")),
            *columns_of(Seat, of="item"),
        ),
        items_of("seats"),
    ),
    TableDefinition(
        "game_abandonments",
        "Games given up, one row each.",
        (GameAbandoned,),
        columns_of(GameAbandoned, renamed={"occurred_at_ms": "abandoned_at"}),
    ),
    TableDefinition(
        "game_outcomes",
        "Finished games, one row each; the view `games` adds those in flight and abandoned.",
        (GameOutcome,),
        columns_of(
            GameOutcome,
            renamed={"occurred_at_ms": "finished_at"},
            computed=[
                _MODELS,
                Column(
                    "winner", "VARCHAR", "Winning models, joined by ` + ` if several; NULL: a draw.", _winner
                ),
                Column(
                    "rewards",
                    "DOUBLE[]",
                    "Final rewards in seat order.",
                    lambda e: [s.reward for s in e.seats],
                ),
            ],
        ),
    ),
    TableDefinition(
        "seats",
        "How each seat of a finished game did, one row per game and seat.",
        (GameOutcome,),
        (
            *columns_of(GameOutcome, of="event", only=("run_id", "game_id", "split", "env_id")),
            *columns_of(SeatResult, of="item"),
            Column(
                "opponent",
                "VARCHAR",
                "The models of the other seats, those of its team left out; sorted, `, ` between.",
                _opponent,
            ),
            Column(
                "counts",
                "BOOLEAN",
                "False for a second seat of a model in its team: their game counts once. NULL: recorded "
                "before there were teams, and every seat counts.",
                _counts,
            ),
            Column(
                "result",
                "VARCHAR",
                "`win` (best rank, somebody worse), `draw` (all equal) or `loss`.",
                _result,
            ),
            Column(
                "ended_invalid",
                "BOOLEAN",
                "Whether this seat's invalid move ended the game.",
                lambda row: row.event.invalid_seat == row.item.seat,
            ),
            Column(
                "no_answers",
                "INTEGER",
                "Requests that its endpoint gave no answer to, so that it was asked again.",
                lambda row: row.event.no_answers.get(row.item.seat, 0),
            ),
            *columns_of(
                GameOutcome, of="event", only=("occurred_at_ms",), renamed={"occurred_at_ms": "finished_at"}
            ),
        ),
        items_of("seats"),
    ),
    TableDefinition(
        "actions",
        "Every move of every finished game, fixed opponents' included; with the seed it replays the game.",
        (GameOutcome,),
        (
            *columns_of(GameOutcome, of="event", only=("run_id", "game_id")),
            Column("game_turn", "INTEGER", "0-based among the game's moves.", "place"),
            *columns_of(Action, of="item"),
            Column(
                "finish_reason",
                "VARCHAR",
                "The end of the model's answer: `stop`, `length` (cut at the token limit), or what an "
                "endpoint calls it; NULL: no model answered.",
                _finish_reason,
            ),
        ),
        items_of("actions"),
    ),
)
