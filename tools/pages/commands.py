"""Make docs/reference/commands.md: every command, its options and their help, as ``--help`` shows them."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from unstable_stream.ui.cli import app
from unstable_stream.ui.cli.commands import COMMANDS

_TITLES: Final = {
    "configure": "Configure",
    "train": "Train",
    "look": "Look",
    "agents": "Let a coding agent ask",
    "measure": "Measure",
    "compare": "Compare",
    "prove": "Prove and ask what if",
    "keep": "Take out and keep",
    "log": "The log",
}
_INTRO: Final = """# Every command

Each is also `unstable-stream COMMAND --help`. This page is generated from the code by `make generated`;
whatever a command does, [Python](python-api.md) does too.

## How a run is named

By its id; by a beginning that no other id has, or by its name if no other run has it; by its `number` in
`unstable-stream runs`, its place among the runs of that log or archive in the order in which they began; or
as `latest`, the newest run that trains: evaluations, tournaments and games of people are not meant. A
checkpoint is `RUN@20` by its update, `RUN@-1` the newest and `RUN@-2` the one before, `RUN@best` the one that
won the largest share of its evaluation games (the newer of equals), and in a run of several trained models
`RUN@MODEL/20` or `RUN@MODEL/best`. Python takes the same words: `us.open_run("latest")`.
"""


def commands_page() -> str:
    """Return the page."""
    group = typer.main.get_group(app)
    parts = [_INTRO]
    for module, names in COMMANDS.items():
        parts.append(f"## {_TITLES[module]}\n")
        for name in names:
            context: Any = group.make_context("unstable-stream", [], resilient_parsing=True)
            parts += _command(group.get_command(context, name), f"unstable-stream {name}")
    return "\n".join(parts)


def _command(command: Any, path: str) -> Iterator[str]:
    """Yield the parts of a command and its subcommands. ``Any``: of click, or of Typer's copy of it."""
    yield f"### `{path}`\n"
    yield from (_plain(paragraph) for paragraph in inspect.cleandoc(command.help or "").split("\n\n"))
    rows = [row for parameter in command.params if (row := _row(parameter))]
    if rows:
        yield "| | |\n|---|---|\n" + "\n".join(rows) + "\n"
    for name, subcommand in sorted(getattr(command, "commands", {}).items()):
        yield from _command(subcommand, f"{path} {name}")


def _plain(paragraph: str) -> str:
    lines = [line for line in paragraph.splitlines() if line.strip() != "\b"]
    if lines and re.match(r"\s*(Example: )?unstable-stream ", lines[0]):
        return "```bash\n" + "\n".join(line.strip().removeprefix("Example: ") for line in lines) + "\n```\n"
    return " ".join(line.strip() for line in lines) + "\n"


def _row(parameter: Any) -> str | None:
    if getattr(parameter, "hidden", False) or "--help" in parameter.opts:
        return None
    value = parameter.metavar or parameter.name.upper()
    if parameter.param_type_name == "argument":
        named = f"`{value}`"
    else:
        taken = "" if parameter.is_flag else f" {value}"
        named = ", ".join(f"`{option}{taken}`" for option in (*parameter.opts, *parameter.secondary_opts))
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    default = parameter.default
    shown = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    return f"| {named} | {text}{f' Default: `{default}`.' if shown else ''} |"
