"""Declare the typed tables: of games, of what models said and the learner made of it, and of the rest.

Games are those started, abandoned and finished, with their seats and every move; the rest is runs, ratings,
measurements and rejected records.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from unstable_stream import events
from unstable_stream.archive.tables.declare import (
    Column,
    Item,
    TableDefinition,
    columns_of,
    items_of,
    table_of,
)
from unstable_stream.events import are_partners, event_type, packed_length
from unstable_stream.model_pool.same_games import game_digest


def seat_result(seat: events.SeatResult, seats: tuple[events.SeatResult, ...]) -> str:
    """Return ``win``, ``draw`` or ``loss`` for one seat.

    Best rank and somebody ranked worse is a win (so a whole team can win), all ranks equal is a draw. Alone
    at the table there is nobody to outrank: the sign of the reward decides.
    """
    if len(seats) == 1:
        return "win" if seat.reward > 0 else "loss" if seat.reward < 0 else "draw"
    if all(other.rank == seat.rank for other in seats):
        return "draw"
    return "win" if seat.rank == min(other.rank for other in seats) else "loss"


def _winner(outcome: events.GameOutcome) -> str | None:
    winners = [seat.model_uid for seat in outcome.seats if seat_result(seat, outcome.seats) == "win"]
    return " + ".join(winners) or None


def _models(event: events.GameStarted | events.GameOutcome) -> list[str]:
    return [seat.model_uid for seat in event.seats]


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

GAMES = (
    table_of(
        "game_starts",
        "Games decided on, one row each.",
        events.GameStarted,
        renamed={"occurred_at_ms": "started_at"},
        computed=[_MODELS],
    ),
    TableDefinition(
        "planned_seats",
        "Who was to play each seat, one row per game and seat, also of games that never finished.",
        (events.GameStarted,),
        (
            *columns_of(events.GameStarted, of="event", only=("run_id", "game_id", "split", "env_id")),
            *columns_of(events.Seat, of="item"),
        ),
        items_of("seats"),
    ),
    table_of(
        "game_abandonments",
        "Games given up, one row each.",
        events.GameAbandoned,
        renamed={"occurred_at_ms": "abandoned_at"},
    ),
    table_of(
        "game_outcomes",
        "Finished games, one row each; the view `games` adds those in flight and abandoned.",
        events.GameOutcome,
        renamed={"occurred_at_ms": "finished_at"},
        computed=[
            _MODELS,
            Column("winner", "VARCHAR", "Winning models, joined by ` + ` if several; NULL: a draw.", _winner),
            Column(
                "rewards", "DOUBLE[]", "Final rewards in seat order.", lambda e: [s.reward for s in e.seats]
            ),
        ],
    ),
    TableDefinition(
        "seats",
        "How each seat of a finished game did, one row per game and seat.",
        (events.GameOutcome,),
        (
            *columns_of(events.GameOutcome, of="event", only=("run_id", "game_id", "split", "env_id")),
            *columns_of(events.SeatResult, of="item"),
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
                lambda row: seat_result(row.item, row.event.seats),
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
            Column(
                "branched",
                "BOOLEAN",
                "Whether the game began from a position of another one. NULL: archived before there "
                "was this column.",
                lambda row: row.event.position is not None,
            ),
            Column(
                "game_digest",
                "BIGINT",
                "The same for two games of the same moves and ranks. NULL: no moves are recorded, or it was "
                "archived before there was this column.",
                lambda row: game_digest(row.event),
            ),
            *columns_of(
                events.GameOutcome,
                of="event",
                only=("occurred_at_ms",),
                renamed={"occurred_at_ms": "finished_at"},
            ),
        ),
        items_of("seats"),
    ),
    TableDefinition(
        "actions",
        "Every move of every finished game, fixed opponents' included; with the seed it replays the game.",
        (events.GameOutcome,),
        (
            *columns_of(events.GameOutcome, of="event", only=("run_id", "game_id")),
            Column("game_turn", "INTEGER", "0-based among the game's moves.", "place"),
            *columns_of(events.Action, of="item"),
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


def _fates(update: events.LearnerUpdate | events.StepsDropped) -> list[Item]:
    if isinstance(update, events.StepsDropped):
        return [Item(update, dropped, -1) for dropped in update.dropped]
    trained = [Item(update, step, index) for index, step in enumerate(update.step_ids)]
    return trained + [Item(update, dropped, -1) for dropped in update.dropped]


def _was_dropped(row: Item) -> bool:
    return isinstance(row.item, events.DroppedStep)


def _token_counts(of: str = "") -> list[Column]:
    """Return the columns with the numbers of tokens of a turn, which is this attribute of the row."""

    def count(field: str) -> Callable[[Any], int]:
        ids = attrgetter(of + field)
        return lambda row: packed_length(ids(row))

    return [
        Column("prompt_tokens", "INTEGER", "Number of prompt tokens.", count("prompt_token_ids")),
        Column("completion_tokens", "INTEGER", "Number of sampled tokens.", count("completion_token_ids")),
    ]


TRAINING = (
    table_of(
        "trajectories",
        "One seat's view of one finished game, for every seat a language model played.",
        events.Trajectory,
        renamed={"event_id": "trajectory_id", "occurred_at_ms": "finished_at"},
        texts={"event_id": "The trajectory."},
        computed=[
            Column("num_turns", "INTEGER", "Decisions of this seat.", lambda e: len(e.turns)),
            Column(
                "prompt_tokens",
                "BIGINT",
                "Prompt tokens of all turns.",
                lambda e: sum(packed_length(turn.prompt_token_ids) for turn in e.turns),
            ),
            Column(
                "completion_tokens",
                "BIGINT",
                "Sampled tokens of all turns.",
                lambda e: sum(packed_length(turn.completion_token_ids) for turn in e.turns),
            ),
        ],
    ),
    TableDefinition(
        "turns",
        "Every decision of a language model: what it saw, was given and said.",
        (events.Trajectory,),
        (
            *columns_of(
                events.Trajectory,
                of="event",
                only=("event_id", "run_id", "game_id", "seat"),
                renamed={"event_id": "trajectory_id"},
                texts={"event_id": "The trajectory."},
            ),
            *columns_of(events.Turn, of="item", computed=_token_counts("item.")),
        ),
        items_of("turns"),
    ),
    table_of(
        "steps",
        "Trainable turns with their rewards; the tokens are in `turns` (trajectory_id, turn_index).",
        events.Step,
        renamed={"event_id": "step_id"},
        texts={"event_id": "The step.", "occurred_at_ms": "UTC, of the game's end."},
        computed=_token_counts(),
    ),
    table_of(
        "updates",
        "Learner updates, one row each.",
        events.LearnerUpdate,
        texts={"metrics": "Name to value, e.g. `metrics['grad_norm']`; see docs/reference/metrics.md."},
        computed=[
            Column("trained_steps", "INTEGER", "Steps in the batch.", lambda e: len(e.step_ids)),
            Column(
                "dropped_steps", "INTEGER", "Steps dropped since the last update.", lambda e: len(e.dropped)
            ),
        ],
    ),
    TableDefinition(
        "update_steps",
        "What became of each step: one row per step that an update or a `steps-dropped` event names.",
        (events.LearnerUpdate, events.StepsDropped),
        (
            *columns_of(
                events.LearnerUpdate,
                of="event",
                only=("run_id", "model", "update"),
                texts={"update": "The update that names it, or the next one after it was found lost."},
            ),
            Column(
                "step_id",
                "VARCHAR",
                "",
                lambda row: row.item.step_id if _was_dropped(row) else row.item,
                fields=((events.DroppedStep, "step_id"),),
            ),
            Column(
                "fate",
                "VARCHAR",
                "`trained` or `dropped`.",
                lambda row: "dropped" if _was_dropped(row) else "trained",
            ),
            Column(
                "reason",
                "VARCHAR",
                "`stale` or `overflow` from the buffer; `truncated`, or another word, from the algorithm; "
                "`expired`: the log deleted it before an update could use it; `unreadable`: its trajectory "
                "could not be decoded; NULL if trained.",
                lambda row: row.item.reason if _was_dropped(row) else None,
                fields=((events.DroppedStep, "reason"),),
            ),
            Column(
                "batch_position",
                "INTEGER",
                "0-based place in the batch; NULL if dropped.",
                lambda row: None if _was_dropped(row) else row.place,
            ),
        ),
        _fates,
    ),
    table_of(
        "collapse_warnings",
        "Signs of a collapse, one row each; see docs/explanation/collapse.md.",
        events.CollapseWarning,
    ),
    table_of("checkpoints", "Saved policies, one row each.", events.Checkpoint),
    table_of(
        "adapter_proofs",
        "Engines' proofs of the adapters that they loaded: one row per load.",
        events.AdapterProof,
    ),
)


def _values(event: events.Metrics) -> list[Item]:
    return [Item(event, item, index) for index, item in enumerate(event.values.items())]


OPERATIONS = (
    table_of(
        "run_events",
        "Starts, resumptions and ends of runs; the view `runs` has one row per run.",
        events.RunStarted,
        events.RunResumed,
        events.RunFinished,
        computed=[Column("type", "VARCHAR", "`run-started`, `run-resumed` or `run-finished`.", event_type)],
    ),
    table_of(
        "engine_changes",
        "Engines that came and went, and how many a person wanted.",
        events.EnginesWanted,
        events.EnginesChanged,
        computed=[Column("type", "VARCHAR", "`engines-wanted` or `engines-changed`.", event_type)],
    ),
    table_of(
        "part_changes",
        "Where learner and rollout workers ran; the view `where_it_ran` has the engines, too.",
        events.PartChanged,
    ),
    table_of(
        "ratings", "Every rating ever given: one row per rated game, environment and model.", events.Rating
    ),
    TableDefinition(
        "metrics",
        "Everything measured: one row per name.",
        (events.Metrics,),
        (
            *columns_of(events.Metrics, of="event", only=("run_id", "source", "update")),
            Column("name", "VARCHAR", "E.g. `collection-SimpleTak-v0-train/win-rate`.", lambda r: r.item[0]),
            Column("value", "DOUBLE", "In the unit of docs/reference/metrics.md.", lambda r: r.item[1]),
            *columns_of(events.Metrics, of="event", only=("occurred_at_ms",)),
        ),
        _values,
    ),
    table_of(
        "process_costs",
        "What each process of a run has used, one row per report; the view `costs` adds them up.",
        events.ProcessCost,
    ),
    table_of(
        "dead_letters",
        "Records a consumer could not accept.",
        events.RecordRejected,
        texts={
            "run_id": "The consumer's run; empty if it serves all.",
            "offset": "Offset of the record; reserved in SQL, write it in double quotes.",
            "occurred_at_ms": "UTC, of the record.",
        },
    ),
)
