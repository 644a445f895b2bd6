"""``unstable-stream ui``: runs, games and what-ifs as live pages in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import LogOption


def command(
    data: Annotated[list[Path], typer.Option(envvar="UNSTABLE_STREAM_DATA")] = [DEFAULT_DATA_DIR],  # noqa: B006  # Typer copies it
    log: LogOption = "local",
    host: str = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
    name: list[str] | None = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser")] = True,
) -> None:
    """Show runs, games and what-ifs as live pages in a browser, until Ctrl-C.

    Who has the printed link can look; nobody else. It listens on this machine alone, loads nothing from a
    network, and can be opened while runs train.

    Example: unstable-stream ui

    Example: unstable-stream ui --data monday --data tuesday --port 9000 --no-browser

    Args:
        data: Data directory with the archive; give it several times to see several.
        host: Address to listen on.
        port: Port; 0 takes a free one. By default 8787, or a free one.
        name: A name by which browsers may call this machine, besides its address.
        browser: Open the page in a browser.
    """
    from unstable_stream.api.place import Place
    from unstable_stream.ui.web import serve

    places = [Place.at(each, log) for each in data]
    serve(
        places,
        host=host,
        port=port,
        names=name or [],
        browser=browser,
        on_ready=lambda link: typer.echo(f"open {link}\nCtrl-C ends it."),
    )
