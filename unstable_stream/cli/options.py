"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = ["DataOption", "LogOption", "OptionalLogOption", "SetOption", "place"]

_DEFAULT_DATA = Path("unstable-data")
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

SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a configuration key, e.g. learner.iterations=50."
    ),
]


def place(data: Path, log: str = "local") -> str:
    """Return the options that lead another command to the same place, with a space before each."""
    parts = [f" --data {data}"] if data != _DEFAULT_DATA else []
    return "".join([*parts, f" --log {log}"] if log != "local" else parts)
