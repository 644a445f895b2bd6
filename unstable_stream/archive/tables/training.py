"""Declare the tables of what models said and of what the learner made of it."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from unstable_stream.archive.tables.declare import Column, Item, TableDefinition, columns_of, items_of
from unstable_stream.events import (
    AdapterProof,
    Checkpoint,
    CollapseWarning,
    DroppedStep,
    LearnerUpdate,
    Step,
    StepsDropped,
    Trajectory,
    Turn,
    packed_length,
)


def _fates(update: LearnerUpdate | StepsDropped) -> list[Item]:
    if isinstance(update, StepsDropped):
        return [Item(update, dropped, -1) for dropped in update.dropped]
    trained = [Item(update, step, index) for index, step in enumerate(update.step_ids)]
    return trained + [Item(update, dropped, -1) for dropped in update.dropped]


def _was_dropped(row: Item) -> bool:
    return isinstance(row.item, DroppedStep)


def _token_counts(of: str = "") -> list[Column]:
    """Return the columns with the numbers of tokens of a turn, which is this attribute of the row."""

    def count(field: str) -> Callable[[Any], int]:
        ids = attrgetter(of + field)
        return lambda row: packed_length(ids(row))

    return [
        Column("prompt_tokens", "INTEGER", "Number of prompt tokens.", count("prompt_token_ids")),
        Column("completion_tokens", "INTEGER", "Number of sampled tokens.", count("completion_token_ids")),
    ]


TABLES = (
    TableDefinition(
        "trajectories",
        "One seat's view of one finished game, for every seat a language model played.",
        (Trajectory,),
        columns_of(
            Trajectory,
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
    ),
    TableDefinition(
        "turns",
        "Every decision of a language model: what it saw, was given and said.",
        (Trajectory,),
        (
            *columns_of(
                Trajectory,
                of="event",
                only=("event_id", "run_id", "game_id", "seat"),
                renamed={"event_id": "trajectory_id"},
                texts={"event_id": "The trajectory."},
            ),
            *columns_of(
                Turn,
                of="item",
                computed=_token_counts("item."),
            ),
        ),
        items_of("turns"),
    ),
    TableDefinition(
        "steps",
        "Trainable turns with their rewards; the tokens are in `turns` (trajectory_id, turn_index).",
        (Step,),
        columns_of(
            Step,
            renamed={"event_id": "step_id"},
            texts={"event_id": "The step.", "occurred_at_ms": "UTC, of the game's end."},
            computed=_token_counts(),
        ),
    ),
    TableDefinition(
        "updates",
        "Learner updates, one row each.",
        (LearnerUpdate,),
        columns_of(
            LearnerUpdate,
            texts={"metrics": "Name to value, e.g. `metrics['grad_norm']`; see docs/metrics.md."},
            computed=[
                Column("trained_steps", "INTEGER", "Steps in the batch.", lambda e: len(e.step_ids)),
                Column(
                    "dropped_steps",
                    "INTEGER",
                    "Steps dropped since the last update.",
                    lambda e: len(e.dropped),
                ),
            ],
        ),
    ),
    TableDefinition(
        "update_steps",
        "What became of each step: one row per step that an update or a `steps-dropped` event names.",
        (LearnerUpdate, StepsDropped),
        (
            *columns_of(
                LearnerUpdate,
                of="event",
                only=("run_id", "model", "update"),
                texts={"update": "The update that names it, or the next one after it was found lost."},
            ),
            Column(
                "step_id",
                "VARCHAR",
                "",
                lambda row: row.item.step_id if _was_dropped(row) else row.item,
                fields=((DroppedStep, "step_id"),),
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
                fields=((DroppedStep, "reason"),),
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
    TableDefinition(
        "collapse_warnings",
        "Signs of a collapse, one row each; see docs/collapse.md.",
        (CollapseWarning,),
        columns_of(CollapseWarning),
    ),
    TableDefinition("checkpoints", "Saved policies, one row each.", (Checkpoint,), columns_of(Checkpoint)),
    TableDefinition(
        "adapter_proofs",
        "Engines' proofs of the adapters that they loaded: one row per load.",
        (AdapterProof,),
        columns_of(AdapterProof),
    ),
)
