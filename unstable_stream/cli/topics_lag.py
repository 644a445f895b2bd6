"""``unstable-stream topics lag``: how far each consumer group is behind."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption
from unstable_stream.cli.query_output import (
    CsvOption,
    Format,
    JsonOption,
    TableOption,
    pick_format,
    print_rows,
)

if TYPE_CHECKING:
    from unstable_stream.api.topics import Lag

__all__ = ["register"]

_COLUMNS = ("group", "topic", "committed", "end", "lag")
_EVERY_S = 2.0


def register(group: typer.Typer) -> None:
    """Add the command."""
    group.command("lag", help=_lag.__doc__)(_lag)


def _lag(
    wanted: str | None = typer.Option(None, "--group", help="Only groups with this in the name."),
    partitions: bool = typer.Option(False, "--partitions", help="A row for each partition."),
    everyone: bool = typer.Option(
        False, "--all", help="Also the groups of finished runs, which read no more."
    ),
    watch: bool = typer.Option(False, "--watch", "-w", help="Measure again every two seconds until Ctrl-C."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
) -> None:
    """Show how far each consumer group is behind, by topic: what it has committed against what is there.

    Positions are offsets, the lag is in records: exact near the end, on Kafka a little high further behind.

    Example: unstable-stream topics lag --log kafka://127.0.0.1:9092 --watch
    """
    form = pick_format(as_csv, as_json, as_table)

    from unstable_stream.api.place import Place
    from unstable_stream.api.topics import lags

    columns = (*_COLUMNS[:2], "partition", *_COLUMNS[2:]) if partitions else _COLUMNS
    measured = lags(Place.at(data, log), group=wanted, everyone=everyone, every_s=_EVERY_S if watch else None)
    try:
        for found in measured:
            rows = _rows(found, partitions)
            if watch and form is Format.JSON:
                print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]), flush=True)
                continue
            if watch and form is Format.TABLE:
                _clear()
            print_rows(columns, rows, form)
    except KeyboardInterrupt:
        return


def _clear() -> None:
    from unstable_stream.api.output import plain_console

    plain_console().clear()


def _rows(found: Sequence["Lag"], partitions: bool) -> list[tuple[object, ...]]:
    if partitions:
        return [(each.group, *each.at, each.committed, each.end, each.lag) for each in found]
    sums: dict[tuple[str, str], list[int]] = {}
    for each in found:
        row = sums.setdefault((each.group, each.at.topic), [0, 0, 0])
        for column, value in enumerate((each.committed or 0, each.end, each.lag)):
            row[column] += value
    return [(*names, *numbers) for names, numbers in sums.items()]
