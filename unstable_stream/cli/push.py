"""``unstable-stream push``: a checkpoint as files that transformers, PEFT and vLLM load."""

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import DataOption, LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("push", help=_push.__doc__)(_push)


def _push(
    checkpoint: str = typer.Argument(..., help="RUN@UPDATE, or RUN for its newest checkpoint."),
    destination: str = typer.Argument(..., help="A directory, or hf://OWNER/NAME on the Hugging Face Hub."),
    merged: bool = typer.Option(
        False, "--merged", help="The base model with the adapter merged into it, not the adapter alone."
    ),
    replace: bool = typer.Option(False, "--replace", help="Replace what is there."),
    public: bool = typer.Option(
        False, "--public", help="Let anybody on the Hub read it; else it is private."
    ),
    data: DataOption = DEFAULT_DATA_DIR,
    log: LogOption = "local",
) -> None:
    """Write a checkpoint as files that transformers, PEFT and vLLM load, with a model card.

    Example: unstable-stream push RUN@20 tictactoe-adapter

    Example: unstable-stream push RUN hf://me/tictactoe-player --merged
    """
    from unstable_stream.api.output import plain, plain_console
    from unstable_stream.api.push import push

    with plain_console(stderr=True, highlight=False).status("pushing"):
        done = push(
            checkpoint, destination, merged=merged, replace=replace, public=public, data=data, log=log
        )
    kinds = {"adapter": "adapter", "merged": "merged model", "whole": "whole model"}
    size = sum(done.files.values()) / 1e6
    typer.echo(
        f"{done.destination}: {kinds[done.form]} {plain(done.checkpoint)}, {len(done.files)} files, "
        f"{size:,.1f} MB"
    )
