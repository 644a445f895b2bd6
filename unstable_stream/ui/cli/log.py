"""Commands about the event log: its topics, as declared and as they are, how far readers are, its records."""

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from unstable_stream.api.output import plain, plain_console
from unstable_stream.api.place import Place
from unstable_stream.ui.cli.options import RunOption
from unstable_stream.ui.cli.output import Format, print_objects, print_rows

if TYPE_CHECKING:
    from unstable_stream.api.topics import Lag, StoredRecord

_LAG_COLUMNS = ("group", "topic", "committed", "end", "lag")
_LAG_EVERY_S = 2.0
_LONGEST_FIELD = 60
_LATEST_MS = 253_402_300_799_000  # the end of the year 9999, the last that can be shown


def topics_command(context: typer.Context, *, place: Place) -> None:
    """List the topics: key, partitions, retention, events, and how many records they hold here.

    Example: unstable-stream topics list

    Example: unstable-stream topics describe trajectories
    """
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table

    from unstable_stream.api.topics import declared_topics, kept, record_counts

    counts = record_counts(place)
    table = Table(box=None, header_style="bold")
    for column in ("topic", "key", "partitions", "kept", "events"):
        table.add_column(column, overflow="fold", no_wrap=column in ("topic", "partitions"))
    table.add_column("records" if place.log == "local" else "offsets", justify="right")
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


topics_list = topics_command


def topics_describe(name: Annotated[str, typer.Argument(metavar="TOPIC")], *, place: Place) -> None:
    """Show one topic in full: settings declared and in force, who writes and reads it, fields of its events.

    Example: unstable-stream topics describe trajectories

    Args:
        name: Name of the topic.
    """
    from rich.table import Table

    from unstable_stream.api.topics import declared_topic, event_fields, show_setting, topic_settings

    spec = declared_topic(name)
    settings = topic_settings(place)
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


def topics_create(alter: bool = False, *, place: Place) -> None:
    """Create the topics that are missing. A run does this by itself.

    Example: unstable-stream topics create --alter --log kafka://127.0.0.1:9092

    Args:
        alter: Also give existing topics their declared clean-up, retention and size limit.
    """
    from unstable_stream.api.topics import create_topics

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


def topics_check(*, place: Place) -> None:
    """Compare the log's topics with their declaration; status 1 and what to do if they differ.

    Example: unstable-stream topics check --log kafka://127.0.0.1:9092
    """
    from unstable_stream.api.topics import declared_topics, remedy, topic_drifts

    drift = topic_drifts(place)
    for each in drift:
        typer.echo(f"{each}\n    {remedy(place, each)}")
    if drift:
        raise typer.Exit(1)
    typer.echo(f"{len(declared_topics())} topics are as declared")


def topics_lag(
    wanted: Annotated[str | None, typer.Option("--group")] = None,
    partitions: bool = False,
    everyone: Annotated[bool, typer.Option("--all", "-a")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w")] = False,
    *,
    place: Place,
    form: Format,
) -> None:
    """Show how far each consumer group is behind, by topic: what it has committed against what is there.

    Positions are offsets, the lag is in records: exact near the end, on Kafka a little high further behind.

    Example: unstable-stream topics lag --log kafka://127.0.0.1:9092 --watch

    Args:
        wanted: Only groups with this in the name.
        partitions: A row for each partition.
        everyone: Also the groups of finished runs, which read no more.
        watch: Measure again every two seconds until Ctrl-C.
    """
    from unstable_stream.api.topics import lags

    columns = (*_LAG_COLUMNS[:2], "partition", *_LAG_COLUMNS[2:]) if partitions else _LAG_COLUMNS
    measured = lags(place, group=wanted, everyone=everyone, every_s=_LAG_EVERY_S if watch else None)
    try:
        for found in measured:
            rows = _rows(found, partitions)
            if watch and form is Format.JSON:
                print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows]), flush=True)
                continue
            if watch and form is Format.TABLE:
                plain_console().clear()
            print_rows(columns, rows, form)
    except KeyboardInterrupt:
        return


def _rows(found: Sequence["Lag"], partitions: bool) -> list[tuple[object, ...]]:
    if partitions:
        return [(each.group, *each.at, each.committed, each.end, each.lag) for each in found]
    sums: dict[tuple[str, str], list[int]] = {}
    for each in found:
        row = sums.setdefault((each.group, each.at.topic), [0, 0, 0])
        for column, value in enumerate((each.committed or 0, each.end, each.lag)):
            row[column] += value
    return [(*names, *numbers) for names, numbers in sums.items()]


def topics_trim(
    dry_run: bool = False, ignore_group: list[str] | None = None, shrink: bool = False, *, place: Place
) -> None:
    """Delete the expired records of the local log that are archived and read. A run does this by itself.

    Example: unstable-stream topics trim --dry-run

    Args:
        dry_run: Only say what would be deleted.
        ignore_group: A consumer group that is needed no more and holds back nothing; repeatable.
        shrink: Also make the file smaller; nothing else may use the log meanwhile.
    """
    from unstable_stream.api.topics import trim

    expired = trim(place, ignored_groups=ignore_group or (), shrink=shrink, dry_run=dry_run)
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


def topics_strimzi(
    cluster: Annotated[str, typer.Option()],
    replicas: Annotated[int, typer.Option(min=1)] = 3,
    namespace: str | None = None,
    api_version: str = "v1",
) -> None:
    """Print Kubernetes KafkaTopic manifests, for clusters whose topics belong to Strimzi's operator.

    Example: unstable-stream topics strimzi --cluster my-cluster | kubectl apply -f -

    Args:
        cluster: Name of the Strimzi Kafka cluster.
        replicas: Copies of each partition.
        namespace: Kubernetes namespace of the cluster.
        api_version: v1, or v1beta2 before Strimzi 0.49.
    """
    from unstable_stream.api.topics import strimzi

    manifests = strimzi(cluster, replicas=replicas, namespace=namespace, api_version=api_version)
    typer.echo(manifests, nl=False)


def topics_asyncapi() -> None:
    """Print the AsyncAPI 3.0 document: every topic, who sends and receives on it, and its messages.

    Example: unstable-stream topics asyncapi > asyncapi.json
    """
    from unstable_stream.api.topics import asyncapi

    typer.echo(asyncapi(), nl=False)


def topics_register(
    registry: Annotated[str, typer.Option(envvar="UNSTABLE_STREAM_REGISTRY", metavar="URL")],
    compatibility: Annotated[str | None, typer.Option(metavar="LEVEL")] = None,
    dry_run: bool = False,
    *,
    form: Format,
) -> None:
    """Register the JSON Schema of every event at a schema registry of Confluent's API; again changes nothing.

    Records stay as they are: the subject is the header ce_type without its version. The login is
    UNSTABLE_STREAM_REGISTRY_USERNAME and _PASSWORD, certificates to trust are in _SSL_CAFILE.

    Example: unstable-stream topics register --registry http://127.0.0.1:8081

    Args:
        registry: The registry's address, up to where /subjects follows.
        compatibility: Set it for subjects with something new: NONE, BACKWARD, FORWARD, FULL, ….
        dry_run: Only say what is there.
    """
    from unstable_stream.api.topics import register_schemas

    schemas = register_schemas(registry, compatibility=compatibility, dry_run=dry_run)
    print_objects(schemas, form)
    new = sum(each.state == "registered" for each in schemas)
    if not dry_run:
        print(f"{new} registered, {len(schemas) - new} were there", file=sys.stderr)


def log_command() -> None:
    """Read the event log."""


def log_tail(
    topic: str,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0)] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f")] = False,
    run: RunOption = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    *,
    place: Place,
) -> None:
    """Show the last records of a topic, one a line.

    Example: unstable-stream log tail game-outcomes -n 5 --follow

    Args:
        topic: Topic name; see 'unstable-stream topics'.
        limit: Records to show from the end.
        follow: Go on with new records until Ctrl-C.
        as_json: Whole records, one JSON object a line.
    """
    from unstable_stream.api.topics import record_body, tail

    try:
        for record in tail(place, topic, limit, follow=follow, run=run):
            at = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            body = record_body(record)
            print(json.dumps(at | body) if as_json else _line(record, body), flush=True)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is nobody to tell
    except KeyboardInterrupt:
        return


def _line(record: "StoredRecord", body: dict[str, object]) -> str:
    moment = datetime.fromtimestamp(min(max(0, record.timestamp_ms), _LATEST_MS) / 1000, tz=UTC)
    hidden = {"type", "event_id", "run_id", "occurred_at_ms", "schema_version"}
    fields = " ".join(f"{name}={_short(value)}" for name, value in body.items() if name not in hidden)
    return f"{moment:%H:%M:%S} [{record.partition}]@{record.offset} {_short(body.get('type', '?'))} {fields}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = plain(" ".join(text.split()))
    return text if len(text) <= _LONGEST_FIELD else text[: _LONGEST_FIELD - 1] + "…"
