"""The command line ``unstable-stream``: parses first; a command loads heavy libraries when it runs."""

import sys

import typer

from unstable_stream import __version__
from unstable_stream.cli import (
    archive,
    audit,
    fork,
    games,
    log,
    processors,
    quickstart,
    runs,
    sql,
    topics,
    train,
    watch,
)
from unstable_stream.errors import UnstableStreamError

__all__ = ["app", "main"]

app = typer.Typer(
    name="unstable-stream",
    help="Self-play reinforcement learning for language models on text games, on an event log.",
    epilog="Start with: unstable-stream quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (quickstart, train, watch, fork, processors, runs, games, sql, archive, audit, topics, log):
    module.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"unstable-stream {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


_TRAIN_EXTRA = {
    "huggingface_hub",
    "jinja2",
    "openai",
    "peft",
    "ray",
    "textarena",
    "tokenizers",
    "torch",
    "transformers",
}


def main() -> None:
    """Run the command line; a user's mistake ends as one line on stderr and status 1."""
    try:
        app()
    except UnstableStreamError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _TRAIN_EXTRA:
            raise
        print(
            f"error: this command plays games or trains, which needs {error.name}: "
            "pip install 'unstable_stream[train]'",
            file=sys.stderr,
        )
        sys.exit(1)
