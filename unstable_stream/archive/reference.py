"""Write ``docs/archive.md`` from the declarations: ``python -m unstable_stream.archive.reference``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from unstable_stream.archive.batch import EVENTS
from unstable_stream.archive.examples import EXAMPLES
from unstable_stream.archive.store import SCHEMA_VERSION
from unstable_stream.archive.tables import TABLES
from unstable_stream.archive.tables.not_columns import NOT_COLUMNS
from unstable_stream.archive.view_files import load_views

__all__ = ["Relation", "archive_reference", "relations"]

_INTRO: Final = """# The archive

Every record of every topic, in one DuckDB file: `archive.duckdb` in the data directory. Read it with
`unstable-stream sql "SELECT …"`, or with any DuckDB client from version 1.4 on, opened read-only.
DuckDB lets one process write or many read: the archiver holds the file only while it stores a batch, and
`unstable-stream` waits its turn; another client that finds it locked tries again.

One archive may hold several logs, e.g. first the local file and then a Kafka cluster: records and positions
are kept by `log_id`, so a new cluster, or one that was wiped, is archived from its beginning. An archive of
an older version of the package is upgraded when it is next written to, at the latest by
`unstable-stream archive`.

Where one archiver is not enough, many write one [shared archive](shared-archive.md), in an object store; it
has the same tables and views.

A log that has lost records which were archived is refused, not healed: when the archiver starts, or gets a
partition, and the log ends before the archive's position, it stops, says where, and changes nothing. Restore
the log from a backup; or keep what was archived and fill a new archive from the log as it is now
(`unstable-stream archive --rebuild`).

An event that was published twice is recognised by its id, however long ago the first time was: sorted hashes
of all ids are in the files of `archive.duckdb-ids`, 8 bytes an event. They may be deleted while no archiver
runs; they are made again.

The table `events` keeps each record as it was read. The typed tables hold the same history unpacked; an
event that was published twice is in them once. Times are UTC. Deleting the file loses nothing that the log
still holds: the archiver fills a new one.

Two macros help with rates: `wilson_low(k, n)` and `wilson_high(k, n)` bound the 95 % Wilson interval of k
successes in n trials.

What the log deleted before it was archived is noted in `missing_records`, so that nobody takes half a history
for a whole one: `sql`, `report`, `export` and `verify` say which offsets are missing.

A run can be taken along as Parquet files, one per table: `unstable-stream export RUN -o DIR`, or
`-o s3://bucket/name` into a [store](checkpoint-stores.md).
[`examples/analysis.py`](../examples/analysis.py) is a notebook in plain Python that goes through a run's
curve, ladder and health.

On a Kafka cluster the topic `ratings` is compacted: an archive that reads along has every rating, one that is
filled later the last one of each model and what the cluster has not yet compacted.

## Dropping a run

`unstable-stream archive --drop RUN` takes all rows of a run out of the archive and gives their disk space
back. It asks first, unless `--yes` is given. A run that has not ended is refused, unless nothing of it was
archived for 30 days (`--idle-days`); so is one of which the log has records that are not archived yet. Only
the log of `--log` and `--data` is asked: where the run is of another one, the command says so.

DuckDB uses the space of deleted rows for new ones and seldom makes a file smaller. So the archive is written
anew beside the present one, without the run, and takes its name once it is whole: this needs as much free
disk as what stays, archiver and readers wait meanwhile, and a kill at any moment leaves the archive with the
whole run or without it. Of a [shared archive](shared-archive.md#dropping-a-run) only the files with rows of
the run are written anew, and nobody waits.

What stays is a row of `dropped_runs`. By it the archiver passes over what the log still has of the run, also
after `archive --rebuild`, which says so; `runs` lists the run as `dropped`; and `why`, `report`, `export`,
`verify`, `replay`, `fork`, `resume` and the live pages say when it was dropped. A run that was dropped by
mistake comes back as long as the log has it: move the archive away, and `unstable-stream archive` fills a new
one that knows nothing of it. An export can be read at any time, see below. Log, checkpoints, exports and
backups are not touched.

## An export as an archive

The directory of an [export](analytics.md) of all tables is an archive of this run alone: name it as the data
directory, and `sql`, `runs`, `games`, `report`, `ui`, `why`, `rerate` and `replay --source archive` answer
from its Parquet files as they did from the archive when it was exported. What reads the log, as `verify`,
`audit` and `fork` do, is not answered.

```bash
unstable-stream export RUN -o run-parquet
unstable-stream report RUN --data run-parquet
```

So it is how a run is kept that was dropped, or that has expired in the log. Copy an export in a store to a
directory first. It is only read: archivers, `archive --drop` and `sql --write` refuse it.

## Questions
"""
_POSITIONS: Final = {
    "log_id": "The log.",
    "topic": "Topic.",
    "partition": "Partition of the topic.",
    "next_offset": "Offset of the next record to archive.",
}
_MISSING: Final = {
    "log_id": "The log.",
    "topic": "Topic.",
    "partition": "Partition of the topic.",
    "first_offset": "The first missing offset.",
    "next_offset": "The offset after the last missing one.",
    "since_ms": "Time of the newest record that was archived before, Unix milliseconds; `NULL`: none.",
}
_DROPPED: Final = {
    "run_id": "The run.",
    "name": "Its display name.",
    "started_at": "UTC.",
    "dropped_at": "UTC.",
    "records": "The number of records that were taken out.",
}
_VERSION: Final = {
    "version": f"Of the tables; {SCHEMA_VERSION} now.",
    "package_version": "The unstable_stream that last changed the views.",
    "views_digest": "Tells whether the tables and views are those of the package.",
    "archive_id": "Names the archive's consumer group on the log: `archiver-` and this.",
    "next_record": "The next `record_number`; none is used twice.",
    "traced_from": "Records before this number were archived by an older package; their typed rows have no "
    "`record_number`.",
}


class Relation(NamedTuple):
    """A table or view, as documented."""

    name: str
    kind: str
    """``table`` or ``view``."""
    doc: str
    columns: dict[str, str]
    """Column name to meaning and unit."""
    example: str = ""
    """A query of it."""


def relations() -> tuple[Relation, ...]:
    """Return everything a query can read, views first: they answer most questions."""
    views = [Relation(view.name, "view", view.doc, view.columns, view.example) for view in load_views()]
    tables = [
        Relation(table.name, "table", table.doc, {column.name: column.doc for column in table.columns})
        for table in (EVENTS, *TABLES)
    ]
    own = [
        Relation(
            "positions", "table", "How far the archive has read each partition of each log.", _POSITIONS
        ),
        Relation(
            "missing_records",
            "table",
            "Offsets that the log deleted before they were archived: their records are not here. The view "
            "`missing_of_runs` tells which runs they may be of.",
            _MISSING,
        ),
        Relation(
            "dropped_runs",
            "table",
            "Runs that were dropped from this archive: nothing else here is of them, and nothing of them is "
            "archived again.",
            _DROPPED,
        ),
        Relation("schema_version", "table", "What wrote this file, one row.", _VERSION),
    ]
    return (*views, *tables, *own)


def archive_reference() -> str:
    """Return the page as Markdown."""
    lines = [
        _INTRO,
        *_lines_of_examples(),
    ]
    for kind, heading in (("view", "## Views"), ("table", "## Tables")):
        lines += [heading, ""]
        for relation in relations():
            if relation.kind == kind:
                lines += _lines_of_relation(relation)
    return "\n".join([*lines, *_lines_of_fields_without_column()]).rstrip() + "\n"


def _lines_of_fields_without_column() -> Iterable[str]:
    yield from ("## Event fields that are no column", "", "Every other field is one.", "")
    yield from ("| field | reason |", "|---|---|")
    for struct, fields in NOT_COLUMNS.items():
        for field, reason in fields.items():
            yield f"| `{struct.__name__}.{field}` | {reason} |"


def _lines_of_examples() -> Iterable[str]:
    for example in EXAMPLES:
        yield from (example.question, "", "```sql", example.sql, "```", "")


def _lines_of_relation(relation: Relation) -> Iterable[str]:
    yield from (f"### {relation.name}", "", relation.doc, "", "| column | meaning |", "|---|---|")
    for name, meaning in relation.columns.items():
        yield f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |"
    yield ""
    if relation.example:
        yield from ("```sql", relation.example, "```", "")


if __name__ == "__main__":
    Path("docs/archive.md").write_text(archive_reference(), encoding="utf-8")
