"""``unstable-stream topics``: what is on the log, as declared and as it is."""

import asyncio
from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("topics", help=_topics.__doc__)(_topics)


def _topics(
    name: str | None = typer.Argument(None, help="Show one topic in full, with the fields of its events."),
    data: DataOption = Path("unstable-data"),
) -> None:
    """List the topics: key, partitions, retention, events, and how many records they hold here.

    Example: unstable-stream topics trajectories
    """
    from rich.console import Console
    from rich.table import Table

    from unstable_stream.errors import UnknownTopicError
    from unstable_stream.eventlog.topics import event_schema, load_topics

    specs = load_topics()
    counts = asyncio.run(_record_counts(data))
    console = Console()
    if name is None:
        table = Table("topic", "key", "partitions", "kept", "events", box=None, header_style="bold")
        table.add_column("records", justify="right")
        for spec in specs.values():
            count = counts.get(spec.name)
            table.add_row(
                spec.name,
                spec.key,
                str(spec.partitions),
                _kept(spec.cleanup_policy, spec.retention_ms),
                ", ".join(spec.events),
                "–" if count is None else f"{count:,}",
            )
        console.print(table)
        return
    if name not in specs:
        raise UnknownTopicError(f"no topic {name!r}; topics: {', '.join(specs)}")
    spec = specs[name]
    console.print(f"[bold]{spec.name}[/]: {spec.description}")
    console.print(
        f"key {spec.key}, {spec.partitions} partitions, records up to {spec.max_message_bytes:,} bytes"
    )
    console.print(f"kept: {_kept(spec.cleanup_policy, spec.retention_ms)}")
    console.print(f"written by {', '.join(spec.writers)}; read by {', '.join(spec.readers)}")
    for event in spec.events:
        schema = event_schema(event)
        definition = schema["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
        console.print(f"\n[bold]{event}[/]: {', '.join(definition['properties'])}")


def _kept(cleanup_policy: str, retention_ms: int | None) -> str:
    if cleanup_policy == "compact":
        return "latest per key"
    return "forever" if retention_ms is None else f"{retention_ms // 86_400_000} days"


async def _record_counts(data: Path) -> dict[str, int]:
    from unstable_stream.eventlog.local import LocalLog

    path = data / "log.sqlite"
    if not path.is_file():
        return {}
    log = LocalLog.open(path)
    try:
        counts = {}
        for topic in await log.topics():
            begin, end = await log.beginning_offsets(topic), await log.end_offsets(topic)
            counts[topic] = sum(end.values()) - sum(begin.values())
        return counts
    finally:
        await log.close()
