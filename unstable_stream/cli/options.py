"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = [
    "AllowCodeOption",
    "DataOption",
    "LogOption",
    "MetricsPortOption",
    "OptionalLogOption",
    "SetOption",
    "environment",
]

_LOG_VARIABLE = "UNSTABLE_STREAM_LOG"

DataOption: TypeAlias = Annotated[
    Path,
    typer.Option("--data", envvar="UNSTABLE_STREAM_DATA", help="Data directory: log, archive, checkpoints."),
]

LogOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--log",
        envvar=_LOG_VARIABLE,
        metavar="LOG",
        help="The event log: 'local' is the file in the data directory; or kafka://HOST:PORT.",
    ),
]

OptionalLogOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--log",
        envvar=_LOG_VARIABLE,
        metavar="LOG",
        help="The event log instead of the configured one: 'local', or kafka://HOST:PORT.",
    ),
]

AllowCodeOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-code",
        metavar="PATTERN",
        help="Load code that recorded configurations name if it matches, e.g. 'mypackage.*' or '*'. Code of "
        "runs started from this data directory is allowed anyway.",
    ),
]

MetricsPortOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", min=1, max=65535, metavar="PORT", help="Serve Prometheus metrics of the run here."
    ),
]

SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a configuration key, e.g. learner.iterations=50."
    ),
]


def environment(text: str) -> dict[str, str]:
    """Read ``ENV[:TEMPLATE]``; the id of a game of OpenSpiel, ``openspiel:kuhn_poker``, has a colon too."""
    family, colon, rest = text.partition(":")
    if family == "openspiel":
        name, _, template = rest.partition(":")
        family = f"{family}{colon}{name}"
    else:
        template = rest
    return {"env_id": family, "template": template} if template else {"env_id": family}
