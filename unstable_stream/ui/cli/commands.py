"""The commands, by name: the module of one is imported when it is called, or its own help is asked for.

A new command is a module with a function ``command`` or with ``SUBCOMMANDS``, and a line in :data:`COMMANDS`.
See :mod:`unstable_stream.ui.cli.options` for how its parameters become options.
"""

import ast
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS: Final = [
    "quickstart",
    "train",
    "plan",
    "watch",
    "scale",
    "fork",
    "eval",
    "tournament",
    "exploitability",
    "processors",
    "runs",
    "games",
    "ui",
    "report",
    "why",
    "sql",
    "export",
    "push",
    "archive",
    "backup",
    "prune",
    "audit",
    "collapse",
    "verify",
    "rerate",
    "rederive",
    "replay",
    "consume",
    "track",
    "topics",
    "log",
    "monitor",
]
"""The names of the commands, in the order in which ``unstable-stream --help`` lists them."""


def summary(name: str) -> str:
    """Return the first sentence of a command's help, or of its module's; the module is not imported."""
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    own = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "command")
    doc = ast.get_docstring(next(own, tree)) or ""
    return re.split(r"(?<=\.)\s", " ".join(doc.split()), maxsplit=1)[0]


def add_command(app: typer.Typer, name: str) -> None:
    """Import a command and add it, with its subcommands."""
    from unstable_stream.ui.cli.options import with_options  # the list of commands needs none

    module = importlib.import_module(f"unstable_stream.ui.cli.{name}")
    own = getattr(module, "command", None)
    subcommands: Mapping[str, Callable[..., None]] = getattr(module, "SUBCOMMANDS", {})
    if own is not None and not subcommands:
        app.command(name)(with_options(own))
        return
    group = typer.Typer(invoke_without_command=own is not None, no_args_is_help=own is None)
    if own is None:
        group.info.help = summary(name)
    else:
        group.callback()(with_options(own))
    for subcommand, function in subcommands.items():
        group.command(subcommand)(with_options(function))
    app.add_typer(group, name=name)


class LazyCommands(TyperGroup):
    """Imports ``unstable_stream.ui.cli.NAME`` for the command ``NAME``.

    ``Any``: of click, of which newer versions of Typer have a copy of their own.
    """

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of :data:`COMMANDS`."""
        return COMMANDS

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; while the list of all is shown, one that only has a summary."""
        if cmd_name not in COMMANDS:
            return None
        if self._listing:
            return TyperCommand(cmd_name, help=summary(cmd_name), rich_markup_mode="rich")
        app = typer.Typer(rich_markup_mode="rich")
        add_command(app, cmd_name)
        group = typer.main.get_group(app)
        return group.get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Show the list of commands without importing any."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False
