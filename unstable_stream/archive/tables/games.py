"""Tables of games: what was decided, what came of it, and every move."""

from unstable_stream.archive.tables.declare import Column, Item, Table, items_of
from unstable_stream.events import GameAbandoned, GameOutcome, GameStarted, SeatResult

__all__ = ["TABLES", "seat_result"]


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
    return ", ".join(sorted(seat.model_uid for seat in row.event.seats if seat.seat != row.item.seat)) or None


_GAME = (
    Column("game_id", "VARCHAR", "The game."),
    Column("run_id", "VARCHAR", "The run."),
    Column("game_index", "INTEGER", "0, 1, 2, … within run and split."),
    Column("split", "VARCHAR", "`train` or `eval`."),
)
_PLACE = (
    Column("env_id", "VARCHAR", "TextArena environment."),
    Column("seed", "BIGINT", "Seeds the environment, the scripted opponents and the sampling."),
    Column("models", "VARCHAR[]", "Model uids in seat order.", _models),
    Column("evaluated_uid", "VARCHAR", "The checkpoint under evaluation; NULL in the train split."),
)
_SEAT_OF_GAME = (
    Column("game_id", "VARCHAR", "The game.", "event.game_id"),
    Column("run_id", "VARCHAR", "The run.", "event.run_id"),
    Column("split", "VARCHAR", "`train` or `eval`.", "event.split"),
    Column("env_id", "VARCHAR", "TextArena environment.", "event.env_id"),
    Column("seat", "INTEGER", "0-based player number.", "item.seat"),
    Column("model_uid", "VARCHAR", "Checkpoint uid or name of a fixed opponent.", "item.model_uid"),
    Column("kind", "VARCHAR", "`checkpoint`, `openai` or `scripted`.", "item.kind"),
    Column(
        "policy_version",
        "INTEGER",
        "Learner update that made the checkpoint, 0 the initial policy; NULL for a fixed opponent.",
        "item.policy_version",
    ),
    Column("trained", "BOOLEAN", "Whether the seat's turns become steps.", "item.trained"),
)

TABLES = (
    Table(
        "game_starts",
        "Games decided on, one row each.",
        (GameStarted,),
        (*_GAME, *_PLACE, Column("started_at", "TIMESTAMP", "UTC.", "occurred_at_ms")),
    ),
    Table(
        "planned_seats",
        "Who was to play each seat, one row per game and seat, also of games that never finished.",
        (GameStarted,),
        (
            *_SEAT_OF_GAME,
            Column("template", "VARCHAR", "Prompt template; NULL if scripted.", "item.template"),
        ),
        items_of("seats"),
    ),
    Table(
        "game_abandonments",
        "Games given up, one row each.",
        (GameAbandoned,),
        (
            *_GAME,
            Column("reason", "VARCHAR", "Why it was given up."),
            Column("abandoned_at", "TIMESTAMP", "UTC.", "occurred_at_ms"),
        ),
    ),
    Table(
        "game_outcomes",
        "Finished games, one row each; the view `games` adds those in flight and abandoned.",
        (GameOutcome,),
        (
            *_GAME,
            *_PLACE,
            Column("finished_at", "TIMESTAMP", "UTC.", "occurred_at_ms"),
            Column("reason", "VARCHAR", "`win`, `draw`, `invalid-move` or `truncated`."),
            Column("reason_text", "VARCHAR", "What the environment said about the end."),
            Column("winner", "VARCHAR", "Winning models, joined by ` + ` if several; NULL: a draw.", _winner),
            Column(
                "rewards", "DOUBLE[]", "Final rewards in seat order.", lambda e: [s.reward for s in e.seats]
            ),
            Column("invalid_seat", "INTEGER", "Whose invalid move ended the game; NULL: nobody's."),
            Column("num_turns", "INTEGER", "Moves of all seats."),
            Column("duration_ms", "DOUBLE", "Milliseconds from reset to end."),
        ),
    ),
    Table(
        "seats",
        "How each seat of a finished game did, one row per game and seat.",
        (GameOutcome,),
        (
            *_SEAT_OF_GAME,
            Column("opponent", "VARCHAR", "The other seats' models, sorted, `, ` between.", _opponent),
            Column("role", "VARCHAR", "The environment's name for the seat, if any.", "item.role"),
            Column("reward", "DOUBLE", "Final reward of the environment.", "item.reward"),
            Column("rank", "INTEGER", "0 is best; equal rewards share a rank.", "item.rank"),
            Column(
                "result",
                "VARCHAR",
                "`win` (best rank, somebody worse), `draw` (all equal) or `loss`.",
                _result,
            ),
            Column("turns", "INTEGER", "Moves of this seat.", "item.turns"),
            Column("invalid_moves", "INTEGER", "Moves the environment refused.", "item.invalid_moves"),
            Column(
                "ended_invalid",
                "BOOLEAN",
                "Whether this seat's invalid move ended the game.",
                lambda row: row.event.invalid_seat == row.item.seat,
            ),
            Column("finished_at", "TIMESTAMP", "UTC.", "event.occurred_at_ms"),
        ),
        items_of("seats"),
    ),
    Table(
        "actions",
        "Every move of every finished game, fixed opponents' included; with the seed it replays the game.",
        (GameOutcome,),
        (
            Column("game_id", "VARCHAR", "The game.", "event.game_id"),
            Column("run_id", "VARCHAR", "The run.", "event.run_id"),
            Column("game_turn", "INTEGER", "0-based among the game's moves.", "place"),
            Column("seat", "INTEGER", "Who moved.", "item.seat"),
            Column("action", "VARCHAR", "Exactly what the environment was given.", "item.action"),
            Column("valid", "BOOLEAN", "Whether the environment accepted it.", "item.valid"),
        ),
        items_of("actions"),
    ),
)
