"""``unstable-stream push``: a checkpoint as files that transformers, PEFT and vLLM load."""

import typer

from unstable_stream.api.place import Place


def command(
    checkpoint: str,
    destination: str,
    merged: bool = False,
    replace: bool = False,
    public: bool = False,
    *,
    place: Place,
) -> None:
    """Write a checkpoint as files that transformers, PEFT and vLLM load, with a model card.

    Example: unstable-stream push RUN@20 tictactoe-adapter

    Example: unstable-stream push RUN hf://me/tictactoe-player --merged

    Args:
        checkpoint: RUN@UPDATE, or RUN for its newest checkpoint.
        destination: A directory, or hf://OWNER/NAME on the Hugging Face Hub.
        merged: The base model with the adapter merged into it, not the adapter alone.
        replace: Replace what is there.
        public: Let anybody on the Hub read it; else it is private.
    """
    from unstable_stream.api.output import plain, plain_console
    from unstable_stream.api.push import push

    with plain_console(stderr=True, highlight=False).status("pushing"):
        done = push(
            checkpoint,
            destination,
            merged=merged,
            replace=replace,
            public=public,
            data=place.root,
            log=place.log,
        )
    kinds = {"adapter": "adapter", "merged": "merged model", "whole": "whole model"}
    size = sum(done.files.values()) / 1e6
    typer.echo(
        f"{done.destination}: {kinds[done.form]} {plain(done.checkpoint)}, {len(done.files)} files, "
        f"{size:,.1f} MB"
    )
