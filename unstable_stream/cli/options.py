"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

__all__ = ["DataOption", "LogOption", "SetOption"]

DataOption: TypeAlias = Annotated[
    Path,
    typer.Option("--data", envvar="UNSTABLE_STREAM_DATA", help="Data directory: log, archive, checkpoints."),
]

LogOption: TypeAlias = Annotated[
    str, typer.Option("--log", help="The event log: 'local' is the file in the data directory.")
]

SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a configuration key, e.g. learner.iterations=50."
    ),
]
