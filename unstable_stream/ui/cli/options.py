"""Make the options of a command from its function: one for each parameter, with its help from ``Args:``.

A parameter ``best_of: int = 1`` is the option ``--best-of``, one without a default an argument;
``Annotated[int, typer.Option(min=1)]`` says more. A :class:`Place` is made of ``--data`` and ``--log``, a
:data:`DataPlace` of ``--data``, a :class:`Format` of ``--csv``, ``--json`` and ``--table``. Options
that several commands share are here.
"""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, get_args, get_origin

import typer
from typer.models import OptionInfo, ParameterInfo

from unstable_stream.api.place import DEFAULT_DATA_DIR, DEFAULT_LOG, Place
from unstable_stream.errors import ConfigError, UnstableStreamError
from unstable_stream.ui.cli.output import CsvOption, Format, JsonOption, TableOption, pick_format

DataOption: TypeAlias = Annotated[
    Path,
    typer.Option("--data", envvar="UNSTABLE_STREAM_DATA", help="Data directory: log, archive, checkpoints."),
]

DataPlace: TypeAlias = Annotated[Place, "without its log"]


def _log_option(what: str) -> Any:
    """``Any``: what :func:`typer.Option` returns."""
    text = f"{what}: 'local', the file in the data directory; or kafka://HOST:PORT."
    return typer.Option("--log", envvar="UNSTABLE_STREAM_LOG", metavar="LOG", help=text)


LogOption: TypeAlias = Annotated[str, _log_option("The event log")]
OptionalLogOption: TypeAlias = Annotated[
    str | None, _log_option("The event log instead of the configured one")
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

EnvsOption: TypeAlias = Annotated[list[str] | None, typer.Option("--env", metavar="ENV[:TEMPLATE]")]

MetricsPortOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", min=1, max=65535, metavar="PORT", help="Serve Prometheus metrics of the run here."
    ),
]

QuietOption: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="No live view.")]

_RUN: Final = "id, the beginning of it, name, number in 'unstable-stream runs', or latest"


def complete_run(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of runs that begin so, each with its state, for the shell."""
    from unstable_stream.api.runs import listed_runs  # the parser needs none

    place = Place.at(context.params.get("data"), context.params.get("log"))
    try:
        runs = listed_runs(place, from_log=not place.has_archive)
    except UnstableStreamError:
        return []
    return [(run.run, run.state) for run in runs if run.run.startswith(incomplete) and run.number]


def complete_key(incomplete: str) -> list[tuple[str, str]]:
    """Return the keys that begin so and that ``--set`` takes, each with its meaning, for the shell."""
    from unstable_stream.api.config_keys import config_keys  # the parser needs none

    keys = [key for key in config_keys(in_lists=False) if key.kind != "section"]
    return list({f"{key.path}=": key.meaning for key in keys if key.path.startswith(incomplete)}.items())


def _named_run(metavar: str) -> Any:
    return typer.Argument(metavar=metavar, help=f"Run: {_RUN}.", autocompletion=complete_run)


RunArgument: TypeAlias = Annotated[str, _named_run("RUN")]
NewestRunArgument: TypeAlias = Annotated[str, _named_run("[RUN]")]
"""With the default ``latest``."""
RunsArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...", help=f"Runs, each: {_RUN}. Default: latest.", autocompletion=complete_run
    ),
]
RunOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help=f"Only this run: {_RUN}.", autocompletion=complete_run),
]
PolicyArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="RUN@UPDATE, RUN@best, RUN@-1, or RUN for its newest checkpoint; or a model: directory or "
        "Hugging Face id."
    ),
]

LimitOption: TypeAlias = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="At most so many, the first by --sort.")
]

SetOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a configuration key, e.g. learner.iterations=50.",
        autocompletion=complete_key,
    ),
]


_ENVIRONMENT: Final = re.compile(
    r"(?P<env_id>(?:openspiel:)?(?:[^:(]*\.py:\w+|\w+(?:\.\w+)+:\w+|[^:(]*)(?:\([^()]*\))?)(?::(?P<template>.+))?"
)
"""An id of OpenSpiel has a colon, and so has a name of one's own: file.py:Name, package.module:Name."""


def environment(text: str) -> dict[str, str]:
    """Read ``ENV[:TEMPLATE]``, for the configuration's ``eval_envs``."""
    family, _, rest = text.partition(":")
    if family == "disguise":
        numbers, _, env = rest.partition(":")
        named = environment(env)
        return named | {"env_id": f"{family}:{numbers}:{named.get('env_id', '')}"}
    found = _ENVIRONMENT.fullmatch(text)
    named = found.groupdict() if found else {"env_id": text}
    return {key: value for key, value in named.items() if value}


def parse_moment(text: str, option: str) -> int:
    """Return Unix milliseconds of an ISO 8601 date or time, UTC unless it says otherwise.

    Raises:
        ConfigError: it is none; names the option.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: expected a time such as 2026-01-31T12:00 (UTC)") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


_MADE_OF: Final[Mapping[Any, tuple[Callable[..., Any], Mapping[str, tuple[Any, Any]]]]] = {
    Place: (Place.at, {"data": (DataOption, DEFAULT_DATA_DIR), "log": (LogOption, DEFAULT_LOG)}),
    DataPlace: (Place.at, {"data": (DataOption, DEFAULT_DATA_DIR)}),
    Format: (
        pick_format,
        {"as_csv": (CsvOption, False), "as_json": (JsonOption, False), "as_table": (TableOption, False)},
    ),
}
"""Types of parameters that several options make: the function that makes it, and type and default of each."""


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function as Typer takes it: with options in place of its parameters."""
    doc, _, described = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    helps = {
        name: " ".join(text.split())
        for name, text in re.findall(r"^    (\w+): ((?:.*\n?)(?:^     .*\n?)*)", described, re.MULTILINE)
    }
    parameters: dict[str, inspect.Parameter] = {}
    makers: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation in _MADE_OF:
            make, parts = _MADE_OF[parameter.annotation]
            makers[name] = (make, list(parts))
            for part, (annotation, default) in parts.items():
                parameters[part] = parameter.replace(name=part, annotation=annotation, default=default)
        elif parameter.annotation is typer.Context:
            parameters[name] = parameter
        else:
            parameters[name] = parameter.replace(annotation=_annotation(parameter, helps.get(name)))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        made = {name: make(*map(given.pop, parts)) for name, (make, parts) in makers.items()}
        function(**given, **made)

    command.__doc__ = doc
    keyword = inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=keyword) for parameter in parameters.values()]
    )
    command.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return command


def _annotation(parameter: inspect.Parameter, text: str | None) -> Any:
    """Return a parameter's type with the option, or the argument, that it is."""
    kind, *notes = (
        get_args(parameter.annotation)
        if get_origin(parameter.annotation) is Annotated
        else (parameter.annotation,)
    )
    said: ParameterInfo | None = next((note for note in notes if isinstance(note, ParameterInfo)), None)
    required = parameter.default is parameter.empty
    info = copy.copy(said) if said is not None else typer.Argument() if required else typer.Option()
    info.help = info.help or text
    if isinstance(info, OptionInfo) and info.default is ... and not info.param_decls:
        name = parameter.name.replace("_", "-")
        info.param_decls = (f"--{name}/--no-{name}" if parameter.default is True else f"--{name}",)
    return Annotated[kind, info]
