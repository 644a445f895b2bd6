"""``unstable-stream topics``: what is on the log, as declared and as it is, and how far its readers are."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli import topics_lag
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(invoke_without_command=True)
    group.callback(help=_list.__doc__)(_list)
    group.command("list", help=_list.__doc__)(_list)
    group.command("describe", help=_describe.__doc__)(_describe)
    group.command("create", help=_create.__doc__)(_create)
    group.command("check", help=_check.__doc__)(_check)
    topics_lag.register(group)
    group.command("trim", help=_trim.__doc__)(_trim)
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
    from rich.table import Table

    from unstable_stream.api.output import plain_console
    from unstable_stream.api.place import Place
    from unstable_stream.api.topics import declared_topics, kept, record_counts

    counts = record_counts(Place.at(data, log))
    table = Table(box=None, header_style="bold")
    for column in ("topic", "key", "partitions", "kept", "events"):
        table.add_column(column, overflow="fold", no_wrap=column in ("topic", "partitions"))
    table.add_column("records" if log == "local" else "offsets", justify="right")
    for spec in declared_topics().values():
        count = counts.get(spec.name) if counts is not None else None
        table.add_row(
            spec.name,
            spec.key,
            str(spec.partitions),
            kept(spec),
            ", ".join(spec.events),
            "–" if count is None else f"{count:,}",
        )
    plain_console().print(table)


def _describe(
    name: str = typer.Argument(..., metavar="TOPIC", help="Name of the topic."),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Show one topic in full: settings declared and in force, who writes and reads it, fields of its events.

    Example: unstable-stream topics describe trajectories
    """
    from rich.table import Table

    from unstable_stream.api.output import plain_console
    from unstable_stream.api.place import Place
    from unstable_stream.api.topics import declared_topic, event_fields, show_setting, topic_settings

    spec = declared_topic(name)
    settings = topic_settings(Place.at(data, log))
    actual = None if settings is None else settings.get(name)
    console = plain_console()
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
        console.print(f"\n[bold]{event}[/]: {', '.join(event_fields(event))}")


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
    from unstable_stream.api.place import Place
    from unstable_stream.api.topics import create_topics

    place = Place.at(data, log)
    done = create_topics(place, alter=alter)
    typer.echo(f"created: {', '.join(done.created) or 'none, all were there'}")
    if alter:
        typer.echo(f"altered: {', '.join(done.different) or 'none, all were as declared'}")
    elif done.different:
        typer.echo(
            f"not as declared: {', '.join(done.different)}; see unstable-stream topics check"
            f"{place.options}; --alter brings them to the declaration",
            err=True,
        )


def _check(data: DataOption = DEFAULT_DATA_DIR, log: LogOption = "local") -> None:
    """Compare the log's topics with their declaration; status 1 and what to do if they differ.

    Example: unstable-stream topics check --log kafka://127.0.0.1:9092
    """
    from unstable_stream.api.place import Place
    from unstable_stream.api.topics import declared_topics, remedy, topic_drifts

    place = Place.at(data, log)
    drift = topic_drifts(place)
    for each in drift:
        typer.echo(f"{each}\n    {remedy(place, each)}")
    if drift:
        raise typer.Exit(1)
    typer.echo(f"{len(declared_topics())} topics are as declared")


def _trim(
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be deleted."),
    ignore_group: list[str] = typer.Option(
        [],
        "--ignore-group",
        help="A consumer group that is needed no more and holds back nothing; repeatable.",
    ),
    shrink: bool = typer.Option(
        False, "--shrink", help="Also make the file smaller; nothing else may use the log meanwhile."
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Delete the expired records of the local log that are archived and read. A run does this by itself.

    Example: unstable-stream topics trim --dry-run
    """
    from unstable_stream.api.output import plain
    from unstable_stream.api.place import Place
    from unstable_stream.api.topics import trim

    expired = trim(Place.at(data, log), ignored_groups=ignore_group, shrink=shrink, dry_run=dry_run)
    for each in expired:
        if each.records:
            done = "would be deleted" if dry_run else "deleted"
            typer.echo(
                f"{each.at}: {each.records:,} records {done}, offsets {each.begin} to {each.until - 1}"
            )
        if each.held_back:
            typer.echo(
                f"{each.at}: {each.held_back:,} expired records stay, {plain(each.held_by)} has yet to read "
                "them"
            )
    if not expired:
        typer.echo("nothing has expired")


def _strimzi(
    cluster: str = typer.Option(..., "--cluster", help="Name of the Strimzi Kafka cluster."),
    replicas: int = typer.Option(3, "--replicas", min=1, help="Copies of each partition."),
    namespace: str | None = typer.Option(None, "--namespace", help="Kubernetes namespace of the cluster."),
    api_version: str = typer.Option("v1", "--api-version", help="v1, or v1beta2 before Strimzi 0.49."),
) -> None:
    """Print Kubernetes KafkaTopic manifests, for clusters whose topics belong to Strimzi's operator.

    Example: unstable-stream topics strimzi --cluster my-cluster | kubectl apply -f -
    """
    from unstable_stream.api.topics import strimzi

    manifests = strimzi(cluster, replicas=replicas, namespace=namespace, api_version=api_version)
    typer.echo(manifests, nl=False)


def _asyncapi() -> None:
    """Print the AsyncAPI 3.0 document: every topic, who sends and receives on it, and its messages.

    Example: unstable-stream topics asyncapi > topics/asyncapi.json
    """
    from unstable_stream.api.topics import asyncapi

    typer.echo(asyncapi(), nl=False)
