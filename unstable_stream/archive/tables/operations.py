"""Declare the tables of runs, ratings, measurements and rejected records."""

from unstable_stream.archive.tables.declare import Column, Item, TableDefinition, columns_of
from unstable_stream.events import (
    EnginesChanged,
    EnginesWanted,
    Metrics,
    PartChanged,
    Rating,
    RecordRejected,
    RunFinished,
    RunResumed,
    RunStarted,
    event_type,
)


def _values(event: Metrics) -> list[Item]:
    return [Item(event, item, index) for index, item in enumerate(event.values.items())]


TABLES = (
    TableDefinition(
        "run_events",
        "Starts, resumptions and ends of runs; the view `runs` has one row per run.",
        (RunStarted, RunResumed, RunFinished),
        columns_of(
            RunStarted,
            RunResumed,
            RunFinished,
            computed=[
                Column("type", "VARCHAR", "`run-started`, `run-resumed` or `run-finished`.", event_type)
            ],
        ),
    ),
    TableDefinition(
        "engine_changes",
        "Engines that came and went, and how many a person wanted.",
        (EnginesWanted, EnginesChanged),
        columns_of(
            EnginesWanted,
            EnginesChanged,
            computed=[Column("type", "VARCHAR", "`engines-wanted` or `engines-changed`.", event_type)],
        ),
    ),
    TableDefinition(
        "part_changes",
        "Where learner and rollout workers ran; the view `where_it_ran` has the engines, too.",
        (PartChanged,),
        columns_of(PartChanged),
    ),
    TableDefinition(
        "ratings",
        "Every rating ever given: one row per rated game, environment and model.",
        (Rating,),
        columns_of(Rating),
    ),
    TableDefinition(
        "metrics",
        "Everything measured: one row per name.",
        (Metrics,),
        (
            *columns_of(Metrics, of="event", only=("run_id", "source", "update")),
            Column("name", "VARCHAR", "E.g. `collection-SimpleTak-v0-train/win-rate`.", lambda r: r.item[0]),
            Column("value", "DOUBLE", "In the unit of docs/metrics.md.", lambda r: r.item[1]),
            *columns_of(Metrics, of="event", only=("occurred_at_ms",)),
        ),
        _values,
    ),
    TableDefinition(
        "dead_letters",
        "Records a consumer could not accept.",
        (RecordRejected,),
        columns_of(
            RecordRejected,
            texts={
                "run_id": "The consumer's run; empty if it serves all.",
                "offset": "Offset of the record; reserved in SQL, write it in double quotes.",
                "occurred_at_ms": "UTC, of the record.",
            },
        ),
    ),
)
