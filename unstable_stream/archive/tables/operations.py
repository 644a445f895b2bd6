"""Tables of runs, ratings, measurements and rejected records."""

from typing import Any

from unstable_stream.archive.tables.declare import Column, Item, Table, json_text
from unstable_stream.events import (
    Metrics,
    Rating,
    RecordRejected,
    RunFinished,
    RunResumed,
    RunStarted,
    event_type,
)

__all__ = ["TABLES"]


def _if_present(name: str) -> Any:
    """Return a getter for a field that only some of the table's event families have."""
    return lambda event: getattr(event, name, None)


def _values(event: Metrics) -> list[Item]:
    return [Item(event, item, index) for index, item in enumerate(event.values.items())]


TABLES = (
    Table(
        "run_events",
        "Starts, resumptions and ends of runs; the view `runs` has one row per run.",
        (RunStarted, RunResumed, RunFinished),
        (
            Column("run_id", "VARCHAR", "The run."),
            Column("type", "VARCHAR", "`run-started`, `run-resumed` or `run-finished`.", event_type),
            Column("occurred_at", "TIMESTAMP", "UTC.", "occurred_at_ms"),
            Column("name", "VARCHAR", "Display name, at the start.", _if_present("name")),
            Column("seed", "BIGINT", "Every seed derives from it.", _if_present("seed")),
            Column(
                "config",
                "JSON",
                "Resolved configuration; NULL at the end.",
                lambda e: None if isinstance(e, RunFinished) else json_text(e.config),
            ),
            Column(
                "package_version",
                "VARCHAR",
                "Of unstable_stream; NULL at the end.",
                _if_present("package_version"),
            ),
            Column("parent_run_id", "VARCHAR", "The run it was forked from.", _if_present("parent_run_id")),
            Column("parent_update", "INTEGER", "At which update.", _if_present("parent_update")),
            Column("resumption", "INTEGER", "1 for the first; NULL otherwise.", _if_present("resumption")),
            Column(
                "outcome",
                "VARCHAR",
                "`completed`, `stopped` or `failed`, at the end.",
                _if_present("outcome"),
            ),
            Column("reason", "VARCHAR", "Why it ended.", _if_present("reason")),
            Column("updates", "INTEGER", "Learner updates done, at the end.", _if_present("updates")),
        ),
    ),
    Table(
        "ratings",
        "Every rating ever given: one row per rated game, environment and model.",
        (Rating,),
        (
            Column("run_id", "VARCHAR", "The run."),
            Column("env_id", "VARCHAR", "An environment, or `*` for all together."),
            Column("model_uid", "VARCHAR", "The rated model."),
            Column("mu", "DOUBLE", "Mean skill, TrueSkill points."),
            Column("sigma", "DOUBLE", "Its standard deviation, TrueSkill points."),
            Column("games", "INTEGER", "Rated games so far, this one included."),
            Column("game_id", "VARCHAR", "The game that led to it."),
            Column("occurred_at", "TIMESTAMP", "UTC.", "occurred_at_ms"),
        ),
    ),
    Table(
        "metrics",
        "Everything measured: one row per name.",
        (Metrics,),
        (
            Column("run_id", "VARCHAR", "The run.", "event.run_id"),
            Column("source", "VARCHAR", "The service.", "event.source"),
            Column("update", "INTEGER", "The learner update it belongs to, if any.", "event.update"),
            Column("name", "VARCHAR", "E.g. `collection-SimpleTak-v0-train/win-rate`.", lambda r: r.item[0]),
            Column("value", "DOUBLE", "In the unit of docs/metrics.md.", lambda r: r.item[1]),
            Column("occurred_at", "TIMESTAMP", "UTC.", "event.occurred_at_ms"),
        ),
        _values,
    ),
    Table(
        "dead_letters",
        "Records a consumer could not accept.",
        (RecordRejected,),
        (
            Column("run_id", "VARCHAR", "The consumer's run; empty if it serves all."),
            Column("consumer", "VARCHAR", "The group that rejected it."),
            Column("topic", "VARCHAR", "Where the record is."),
            Column("partition", "INTEGER", "Where the record is."),
            Column("offset", "BIGINT", "Where the record is; reserved in SQL, write it in double quotes."),
            Column("reason", "VARCHAR", "Error class and message."),
            Column("record_key", "VARCHAR", "The record's key."),
            Column("record_value", "BLOB", "The record's bytes."),
            Column("occurred_at", "TIMESTAMP", "UTC, of the record.", "occurred_at_ms"),
        ),
    ),
)
