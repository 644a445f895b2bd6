"""``unstable-stream topics``: what is on the log, as declared and as it is, and how far its readers are."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from unstable_stream.cli import topics_lag
from unstable_stream.cli.options import DataOption, LogOption
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from unstable_stream.log.port import EventLog, TopicSpec

__all__ = ["register"]

T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(invoke_without_command=True)
    group.callback(help=_list.__doc__)(_list)
    group.command("list", help=_list.__doc__)(_list)
    group.command("describe", help=_describe.__doc__)(_describe)
    group.command("create", help=_create.__doc__)(_create)
    group.command("check", help=_check.__doc__)(_check)
    topics_lag.register(group)
    group.command("strimzi", help=_strimzi.__doc__)(_strimzi)
    group.command("asyncapi", help=_asyncapi.__doc__)(_asyncapi)
    app.add_typer(group, name="topics")


def _list(context: typer.Context, data: DataOption = DEFAULT_DATA_DIR, log: LogOption = "local") -> None:
    """List the topics: key, partitions, retention, events, and how many records they hold here.

    Example: unstable-stream topics list

    Example: unstable-stream topics describe trajectories
    """
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console
    from rich.table import Table

    from unstable_stream.log.topics import load_topics

    counts = _on_log(_record_counts, data, log)
    table = Table(box=None, header_style="bold")
    for column in ("topic", "key", "partitions", "kept", "events"):
        table.add_column(column, overflow="fold", no_wrap=column in ("topic", "partitions"))
    table.add_column("records" if log == "local" else "offsets", justify="right")
    for spec in load_topics().values():
        count = counts.get(spec.name) if counts is not None else None
        table.add_row(
            spec.name,
            spec.key,
            str(spec.partitions),
            _kept(spec),
            ", ".join(spec.events),
            "–" if count is None else f"{count:,}",
        )
    Console().print(table)


def _describe(
    name: str = typer.Argument(..., metavar="TOPIC", help="Name of the topic."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Show one topic in full: settings declared and in force, who writes and reads it, fields of its events.

    Example: unstable-stream topics describe trajectories
    """
    from rich.console import Console
    from rich.table import Table

    from unstable_stream.errors import UnknownTopicError
    from unstable_stream.log.topic_drift import show_setting
    from unstable_stream.log.topics import event_schema, load_topics

    specs = load_topics()
    if name not in specs:
        raise UnknownTopicError(f"no topic {name!r}; topics: {', '.join(specs)}")
    spec = specs[name]
    settings = _on_log(lambda opened: opened.topic_settings(), data, log)
    actual = None if settings is None else settings.get(name)
    console = Console()
    console.print(f"[bold]{spec.name}[/]: {spec.description}")
    console.print(
        f"key {spec.key}; written by {', '.join(spec.writers)}; read by {', '.join(spec.readers)}\n"
    )
    table = Table("setting", "declared", "on this log", box=None, header_style="bold")
    for setting in ("partitions", "cleanup_policy", "retention_ms", "max_message_bytes"):
        declared = show_setting(spec, setting)
        found = "–" if actual is None else show_setting(actual, setting)
        label = setting.replace("_", " ").removesuffix(" ms")
        table.add_row(label, declared, found if found in ("–", declared) else f"[yellow]{found}[/]")
    console.print(table)
    for event in spec.events:
        schema = event_schema(event)
        definition = schema["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
        console.print(f"\n[bold]{event}[/]: {', '.join(definition['properties'])}")


def _create(
    alter: bool = typer.Option(
        False, "--alter", help="Also give existing topics their declared clean-up, retention and size limit."
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Create the topics that are missing. A run does this by itself.

    Example: unstable-stream topics create --alter --log kafka://127.0.0.1:9092
    """
    from unstable_stream.log.open import opened_log
    from unstable_stream.log.topic_drift import find_drift
    from unstable_stream.log.topics import load_topics
    from unstable_stream.runs.data_dir import DataDir

    declared = load_topics()

    async def create() -> tuple[list[str], list[str]]:
        async with opened_log(log, DataDir(data).log) as opened:
            drift = find_drift(declared, await opened.topic_settings())
            await opened.create_topics(list(declared.values()))
            different = {
                each.topic: each.declared for each in drift if each.setting not in ("topic", "partitions")
            }
            if alter and different:
                await opened.alter_topics(list(different.values()))
            return [each.topic for each in drift if each.setting == "topic"], list(different)

    created, different = asyncio.run(create())
    typer.echo(f"created: {', '.join(created) or 'none, all were there'}")
    if alter:
        typer.echo(f"altered: {', '.join(different) or 'none, all were as declared'}")
    elif different:
        typer.echo(
            f"not as declared: {', '.join(different)}; see unstable-stream topics check"
            f"{DataDir(data).options(log)}; --alter brings them to the declaration",
            err=True,
        )


def _check(data: DataOption = DEFAULT_DATA_DIR, log: LogOption = "local") -> None:
    """Compare the log's topics with their declaration; status 1 and what to do if they differ.

    Example: unstable-stream topics check --log kafka://127.0.0.1:9092
    """
    from unstable_stream.log.open import opened_log
    from unstable_stream.log.topic_drift import find_drift, remedy
    from unstable_stream.log.topics import load_topics
    from unstable_stream.runs.data_dir import DataDir

    declared = load_topics()
    directory = DataDir(data)

    async def settings() -> "Mapping[str, TopicSpec]":
        async with opened_log(log, directory.log, existing=True) as opened:
            return await opened.topic_settings()

    drift = find_drift(declared, asyncio.run(settings()))
    for each in drift:
        typer.echo(f"{each}\n    {remedy(each, log, directory.options(log))}")
    if drift:
        raise typer.Exit(1)
    typer.echo(f"{len(declared)} topics are as declared")


def _strimzi(
    cluster: str = typer.Option(..., "--cluster", help="Name of the Strimzi Kafka cluster."),
    replicas: int = typer.Option(3, "--replicas", min=1, help="Copies of each partition."),
    namespace: str | None = typer.Option(None, "--namespace", help="Kubernetes namespace of the cluster."),
    api_version: str = typer.Option("v1", "--api-version", help="v1, or v1beta2 before Strimzi 0.49."),
) -> None:
    """Print Kubernetes KafkaTopic manifests, for clusters whose topics belong to Strimzi's operator.

    Example: unstable-stream topics strimzi --cluster my-cluster | kubectl apply -f -
    """
    from unstable_stream.log.contracts.strimzi import manifests
    from unstable_stream.log.topics import load_topics

    typer.echo(
        manifests(
            load_topics().values(), cluster, replicas=replicas, namespace=namespace, api_version=api_version
        ),
        nl=False,
    )


def _asyncapi() -> None:
    """Print the AsyncAPI 3.0 document: every topic, who sends and receives on it, and its messages.

    Example: unstable-stream topics asyncapi > topics/asyncapi.json
    """
    from unstable_stream.log.contracts.asyncapi import document_text

    typer.echo(document_text(), nl=False)


def _kept(spec: "TopicSpec") -> str:
    from unstable_stream.log.topic_drift import show_setting

    return "latest per key" if spec.cleanup_policy == "compact" else show_setting(spec, "retention_ms")


def _on_log(ask: "Callable[[EventLog], Awaitable[T]]", data: Path, location: str) -> T | None:
    """Ask a log; ``None`` if it is a file that does not exist, since the declaration is worth showing too."""
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir

    directory = DataDir(data)
    if location == "local" and not directory.log.is_file():
        return None

    async def run() -> T:
        async with opened_log(location, directory.log) as log:
            return await ask(log)

    return asyncio.run(run())


async def _record_counts(log: "EventLog") -> dict[str, int]:
    from unstable_stream.log.topics import load_topics

    async def count(topic: str) -> int:
        begin, end = await asyncio.gather(log.beginning_offsets(topic), log.end_offsets(topic))
        return sum(end.values()) - sum(begin.values())

    there = await log.topics()
    topics = [topic for topic in load_topics() if topic in there]
    return dict(zip(topics, await asyncio.gather(*map(count, topics)), strict=True))
