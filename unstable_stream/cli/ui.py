"""``unstable-stream ui``: runs, games and what-ifs as live pages in a browser."""

from pathlib import Path

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.cli.options import LogOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("ui", help=_ui.__doc__)(_ui)


def _ui(
    data: list[Path] = typer.Option(
        [DEFAULT_DATA_DIR],
        "--data",
        envvar="UNSTABLE_STREAM_DATA",
        help="Data directory with the archive; give it several times to see several.",
    ),
    log: LogOption = "local",
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen on."),
    port: int | None = typer.Option(
        None, "--port", min=0, max=65535, help="Port; 0 takes a free one. By default 8787, or a free one."
    ),
    name: list[str] | None = typer.Option(
        None, "--name", help="A name by which browsers may call this machine, besides its address."
    ),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open the page in a browser."),
) -> None:
    """Show runs, games and what-ifs as live pages in a browser, until Ctrl-C.

    Who has the printed link can look; nobody else. It listens on this machine alone, loads nothing from a
    network, and can be opened while runs train.

    Example: unstable-stream ui

    Example: unstable-stream ui --data monday --data tuesday --port 9000 --no-browser
    """
    from unstable_stream.api.place import Place
    from unstable_stream.ui import serve

    places = [Place.at(each, log) for each in data]
    serve(
        places,
        host=host,
        port=port,
        names=name or [],
        browser=browser,
        on_ready=lambda link: typer.echo(f"open {link}\nCtrl-C ends it."),
    )
