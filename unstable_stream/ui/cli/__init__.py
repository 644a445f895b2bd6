"""The command line ``unstable-stream``: parses first; a command loads heavy libraries when it runs."""

import contextlib
import io
import logging
import os
import sys

import typer

from unstable_stream.console import plain
from unstable_stream.errors import UnstableStreamError
from unstable_stream.ui.cli.commands import LazyCommands
from unstable_stream.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="unstable-stream",
    cls=LazyCommands,
    help="Self-play reinforcement learning for language models on text games, on an event log.",
    epilog="Start with: unstable-stream quickstart",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
_EXTRAS = (
    ("ui", "these pages need", {"starlette", "uvicorn"}),
    ("mcp", "a server for agents needs", {"mcp"}),
    ("train", "this command plays games or trains, which needs", _TRAIN_EXTRA),
    ("kafka", "a log on Kafka needs", {"aiokafka", "cramjam", "faust", "mode"}),
    ("tensorboard", "the tracker tensorboard needs", {"tensorboard"}),
    ("wandb", "the tracker wandb needs", {"wandb"}),
    ("analytics", "this command needs", {"openskill"}),
)


def main() -> None:
    """Run the command line; a user's mistake ends as one line on stderr and status 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the terminal may not have every letter
    _write_no_core_files()
    _reach_this_machine_directly()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # repeats at length what our errors say
    try:
        app()
    except UnstableStreamError as error:
        print(plain("\n".join([f"error: {error}", *getattr(error, "__notes__", ())])), file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        hint = _missing(error.name or "")
        if hint is None:
            raise
        print(f"error: {hint}", file=sys.stderr)
        sys.exit(1)


def _write_no_core_files() -> None:
    """Have no crash write a file with the memory of this process, or of one that it starts.

    Keys of endpoints and stores are in the environment, so in memory. The hard limit stays: ``prlimit``
    allows core files to a process that is to be looked into.
    """
    with contextlib.suppress(ImportError):  # Windows has neither
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _reach_this_machine_directly() -> None:
    """Have no client, of this process or one that it starts, ask a proxy for an address of this machine."""
    said = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if said != "*" and any(name.lower().endswith("_proxy") for name in os.environ):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{said},localhost,127.0.0.1,::1".lstrip(",")


def _missing(module: str) -> str | None:
    """Return what to install for a module, if an extra has it."""
    for extra, purpose, modules in _EXTRAS:
        if module.partition(".")[0] in modules:
            return f"{purpose} {module}: pip install 'unstable_stream[{extra}]'"
    return None
