"""``unstable-stream log tail``: read the log as it is written."""

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption

__all__ = ["register"]

_LONGEST_FIELD = 60


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Read the event log.", no_args_is_help=True)
    group.command("tail", help=_tail.__doc__)(_tail)
    app.add_typer(group, name="log")


def _tail(
    topic: str = typer.Argument(..., help="Topic name; see 'unstable-stream topics'."),
    lines: int = typer.Option(10, "--lines", "-n", min=0, help="Records to show from the end."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Go on with new records until Ctrl-C."),
    run: str | None = typer.Option(None, "--run", help="Only records of this run (id or prefix)."),
    as_json: bool = typer.Option(False, "--json", help="Whole records, one JSON object a line."),
    data: DataOption = Path("unstable-data"),
) -> None:
    """Show the last records of a topic, one a line.

    Example: unstable-stream log tail game-outcomes -n 5 --follow
    """
    try:
        asyncio.run(_print_tail(topic, lines, follow, run, as_json, data))
    except KeyboardInterrupt:
        return


async def _print_tail(
    topic: str, lines: int, follow: bool, run: str | None, as_json: bool, data: Path
) -> None:
    from unstable_stream.errors import EventLogError
    from unstable_stream.eventlog.local import LocalLog
    from unstable_stream.eventlog.port import StoredRecord

    path = data / "log.sqlite"
    if not path.is_file():
        raise EventLogError(f"no event log at {path}: start a run first, or name its directory with --data")
    log = LocalLog.open(path)

    def show(record: StoredRecord) -> None:
        body = json.loads(record.value)
        if run and not str(body.get("run_id", "")).startswith(run):
            return
        print(json.dumps(_position(record) | body) if as_json else _line(record, body), flush=True)

    try:
        consumer = await log.consumer([topic], start="beginning")
        ends = await log.end_offsets(topic)
        # Each partition may hold any share of the last records: read the tails of all, keep the newest.
        await consumer.seek({partition: max(0, end - lines) for partition, end in ends.items()})
        tail: list[StoredRecord] = []
        while any(consumer.positions().get(partition, 0) < end for partition, end in ends.items()):
            tail.extend(await consumer.poll(timeout_s=0.2))
        tail.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
        for record in tail[-lines:] if lines else []:
            show(record)
        while follow:
            for record in await consumer.poll(timeout_s=1.0):
                show(record)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell
    finally:
        await log.close()


def _position(record: object) -> dict[str, object]:
    return {name: getattr(record, name) for name in ("topic", "partition", "offset")}


def _line(record: object, body: dict[str, object]) -> str:
    moment = datetime.fromtimestamp(int(str(body.get("occurred_at_ms", 0))) / 1000, tz=UTC)
    hidden = {"type", "event_id", "run_id", "occurred_at_ms", "schema_version"}
    fields = " ".join(f"{name}={_short(value)}" for name, value in body.items() if name not in hidden)
    position = _position(record)
    return f"{moment:%H:%M:%S} [{position['partition']}]@{position['offset']} {body.get('type')} {fields}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_FIELD else text[: _LONGEST_FIELD - 1] + "…"
