"""Commands about configurations: write one for a game, explain its keys, describe it to editors."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from unstable_stream.api.output import plain, plain_console


def init_command(
    game: str,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    force: bool = False,
) -> None:
    """Write a commented configuration for a game, to change and train with.

    It begins from the example that fits: of the tiny player for a game whose board it reads, else of a
    language model.

    Example: unstable-stream init TicTacToe-v0-train

    Example: unstable-stream init simpletak --out my.toml

    Args:
        game: Id of an environment, docs/reference/environments.md lists them; or the name of an example.
        out: The file; by default GAME.toml here.
        force: Replace a file that is there.
    """
    from unstable_stream.api.starting import write_configuration

    written = write_configuration(game, out, force=force)
    path = plain(str(written.path))
    typer.echo(f"{path}, from the example {written.example}; train with: unstable-stream train {path}")


def config_command() -> None:
    """Explain the keys of a configuration, and describe them to editors."""


def config_explain(key: str, file: Annotated[Path | None, typer.Argument()] = None) -> None:
    """Say what a key of a configuration means: type, allowed values, default; of a section, all its keys.

    Example: unstable-stream config explain learner.learning_rate

    Example: unstable-stream config explain sampling my.toml

    Args:
        key: The key, as --set takes it: SECTION.KEY, or a section.
        file: Say too what this configuration file sets.
    """
    from rich.markup import escape
    from rich.padding import Padding

    from unstable_stream.api.config_keys import explained, set_in

    console = plain_console(highlight=False)
    for each in explained(key):
        typed = f", where type is {each.variant}" if each.variant else ""
        default = {"": "", "required": "; required"}.get(each.default, f"; default {each.default}")
        told = f"{each.kind.replace('`', '')} {each.bounds}".strip() + default + typed
        console.print(f"[bold]{escape(each.path)}[/]: {escape(told)}")
        console.print(Padding(escape(each.meaning), (0, 0, 0, 4)))
        if file is not None and each.kind != "section":
            found = set_in(file, each.path, key)
            console.print(f"    [green]{escape(f'{file}: {found}' if found else f'not set in {file}')}[/]")


def config_schema() -> None:
    """Print the JSON Schema of configuration files, by which editors complete keys and show their meaning.

    Begin a file with #:schema ./unstable-stream.schema.json for taplo, and Even Better TOML in VS Code.

    Example: unstable-stream config schema > unstable-stream.schema.json
    """
    from unstable_stream.api import config_keys

    json.dump(config_keys.config_schema(), sys.stdout, indent=2)
    print()
