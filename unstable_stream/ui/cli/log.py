"""Read the event log."""

import json
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from unstable_stream.api.output import plain
from unstable_stream.api.place import Place

if TYPE_CHECKING:
    from unstable_stream.api.topics import StoredRecord

_LONGEST_FIELD = 60
_LATEST_MS = 253_402_300_799_000  # the end of the year 9999, the last that can be shown


def _tail(
    topic: str,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0)] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
    run: str | None = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    *,
    place: Place,
) -> None:
    """Show the last records of a topic, one a line.

    Example: unstable-stream log tail game-outcomes -n 5 --follow

    Args:
        topic: Topic name; see 'unstable-stream topics'.
        lines: Records to show from the end.
        follow: Go on with new records until Ctrl-C.
        run: Only records of this run (id or prefix).
        as_json: Whole records, one JSON object a line.
    """
    from unstable_stream.api.topics import record_body, tail

    try:
        for record in tail(place, topic, lines, follow=follow, run=run):
            body = record_body(record)
            print(json.dumps(_position(record) | body) if as_json else _line(record, body), flush=True)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell
    except KeyboardInterrupt:
        return


def _position(record: "StoredRecord") -> dict[str, object]:
    return {"topic": record.topic, "partition": record.partition, "offset": record.offset}


def _line(record: "StoredRecord", body: dict[str, object]) -> str:
    moment = datetime.fromtimestamp(min(max(0, record.timestamp_ms), _LATEST_MS) / 1000, tz=UTC)
    hidden = {"type", "event_id", "run_id", "occurred_at_ms", "schema_version"}
    fields = " ".join(f"{name}={_short(value)}" for name, value in body.items() if name not in hidden)
    return f"{moment:%H:%M:%S} [{record.partition}]@{record.offset} {_short(body.get('type', '?'))} {fields}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = plain(" ".join(text.split()))
    return text if len(text) <= _LONGEST_FIELD else text[: _LONGEST_FIELD - 1] + "…"


SUBCOMMANDS = {"tail": _tail}
