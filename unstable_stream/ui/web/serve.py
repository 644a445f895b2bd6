"""Serve the pages until Ctrl-C, SIGTERM or SIGHUP; games that are being played end then too."""

import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from typing import Final

import uvicorn

from unstable_stream.api.launching import end_runs_at_signals
from unstable_stream.api.place import Place
from unstable_stream.errors import ServiceError
from unstable_stream.ui.web.app import build_app
from unstable_stream.ui.web.site import Site

DEFAULT_PORT: Final = 8787
_USUAL_PORT: Final = 80
_LAST_WORDS_S: Final = 1
"""A page that listens for changes would keep the server from ending."""


def served(
    places: Sequence[Place], bound: socket.socket, *, names: Sequence[str] = ()
) -> tuple[uvicorn.Server, str]:
    """Return a server for an open port, and the link to it; ``names``: it has them besides its address."""
    address, port = bound.getsockname()[:2]
    hosts = hosts_of(address, port, names)
    token = secrets.token_urlsafe(24)
    app = build_app(Site(places), token=token, hosts=hosts)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_LAST_WORDS_S,
    )
    return uvicorn.Server(config), f"http://{hosts[0]}/?token={token}"


def hosts_of(address: str, port: int, names: Sequence[str]) -> list[str]:
    """Return what browsers may call this machine, the best name first."""
    shown = f"[{address}]" if ":" in address else address
    loopback = ("127.0.0.1", "localhost", "[::1]") if address in ("127.0.0.1", "::1") else ()
    named = [*names, shown, *loopback]
    # Browsers leave out the usual port.
    return [f"{name}:{port}" for name in named] + (named if port == _USUAL_PORT else [])


def serve(
    places: Sequence[Place],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    names: Sequence[str] = (),
    browser: bool = True,
    on_ready: Callable[[str], None] = lambda link: None,
) -> None:
    """Serve the pages of these places until a signal.

    Args:
        places: data directories and logs.
        host: address to listen on.
        port: to listen on; 0 takes a free one; ``None``: 8787, or a free one if that is taken.
        names: further names by which browsers may call this machine, e.g. ``gpu-box.lan``.
        browser: open the link in this machine's browser.
        on_ready: told the link.

    Raises:
        ServiceError: the port is taken, or the address is none of this machine.
    """
    with _bound(host, port) as bound:
        server, link = served(places, bound, names=names)
        on_ready(link)
        if browser:
            threading.Thread(target=_open, args=(link,), daemon=True).start()
        end_runs_at_signals()  # the games that are being played; the server itself goes before
        server.run([bound])


def _open(link: str) -> None:
    """Open a browser with a window; one of the terminal would take the terminal."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return  # there is none; the link is printed
    if type(browser) is not webbrowser.GenericBrowser:
        browser.open(link)


def _bound(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    wanted = [DEFAULT_PORT, 0] if port is None else [port]
    for number in wanted:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, number))
            bound.listen()  # before the link is told, so that nobody finds the door shut
        except OSError as error:
            bound.close()
            if number == wanted[-1]:
                raise ServiceError(
                    f"cannot listen on {host}:{number}: {error.strerror or error}; choose another --port"
                ) from error
        else:
            return bound
    raise AssertionError("unreachable")
