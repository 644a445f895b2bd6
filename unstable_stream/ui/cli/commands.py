"""The commands, by name: the module of one is imported when it is called, or its own help is asked for.

A new command ``NAME`` is a function ``NAME_command`` of a module, and its name in :data:`COMMANDS`; functions
``NAME_PART`` are its subcommands. See :mod:`unstable_stream.ui.cli.options` for how its parameters become
options.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from unstable_stream.errors import did_you_mean

COMMANDS: Final = {
    "configure": ("init", "config"),
    "train": ("quickstart", "train", "imitate", "plan", "watch", "scale", "fork", "learn", "processors"),
    "look": ("runs", "games", "ui", "why", "sql", "collapse", "track", "monitor", "doctor"),
    "agents": ("mcp",),
    "measure": ("eval", "tournament", "play", "exploitability", "exploit", "branch"),
    "compare": ("compare", "diff", "bisect"),
    "prove": ("check-env", "audit", "verify", "rerate", "rederive", "replay", "consume"),
    "keep": ("report", "push", "export", "import", "archive", "backup", "prune", "rm", "disk"),
    "log": ("topics", "log"),
}
"""By module the names of its commands, in the order in which ``unstable-stream --help`` lists them."""
_HOMES: Final = {name: home for home, names in COMMANDS.items() for name in names}


def _stem(name: str) -> str:
    return name.replace("-", "_")


def summary(name: str) -> str:
    """Return the first sentence of a command's help; its module is not imported."""
    return re.split(r"(?<=\.)\s", " ".join(helps(name)[name].split()), maxsplit=1)[0]


def helps(name: str) -> dict[str, str]:
    """Return the help of a command and of its subcommands by name; their module is not imported."""
    tree = ast.parse((Path(__file__).parent / f"{_HOMES[name]}.py").read_text(encoding="utf-8"))
    begins = f"{_stem(name)}_"
    return {
        f"{name} {part}".removesuffix(" command"): ast.get_docstring(each) or ""
        for each in tree.body
        if isinstance(each, ast.FunctionDef) and each.name.startswith(begins)
        for part in [each.name.removeprefix(begins)]
    }


def every_help() -> dict[str, str]:
    """Return the help of every command and subcommand by name."""
    return {name: text for command in _HOMES for name, text in helps(command).items()}


def add_command(app: typer.Typer, name: str) -> None:
    """Import a command and add it, with its subcommands; without a context it only groups these."""
    from unstable_stream.ui.cli.options import with_options  # the list of commands needs none

    begins = f"{_stem(name)}_"
    functions = vars(importlib.import_module(f"unstable_stream.ui.cli.{_HOMES[name]}"))
    parts = {key.removeprefix(begins): each for key, each in functions.items() if key.startswith(begins)}
    own = parts.pop("command")
    if not parts:
        app.command(name)(with_options(own))
        return
    alone = "context" in inspect.signature(own).parameters
    group = typer.Typer(invoke_without_command=alone, no_args_is_help=not alone)
    group.callback()(with_options(own))
    for part, function in parts.items():
        group.command(part)(with_options(function))
    app.add_typer(group, name=name)


class LazyCommands(TyperGroup):
    """Imports ``unstable_stream.ui.cli.NAME`` for the command ``NAME``.

    ``Any``: of click, of which newer versions of Typer have a copy of their own.
    """

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of :data:`COMMANDS`."""
        return list(_HOMES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while the list of all is shown, one that only has a summary."""
        if cmd_name not in _HOMES:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=summary(cmd_name), rich_markup_mode="rich")
        app = typer.Typer(rich_markup_mode="rich")
        add_command(app, cmd_name)
        group = typer.main.get_group(app)
        return group.get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is named first, and its arguments; a mistake is told with what is close."""
        if args and args[0] not in _HOMES:
            ctx.fail(f"No such command {args[0]!r}; {did_you_mean(args[0], _HOMES, '-h lists them')}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the list of commands without importing any."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False
