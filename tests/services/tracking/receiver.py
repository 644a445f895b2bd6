"""A server that keeps what is posted to it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Received:
    """The requests so far."""

    url: str = ""
    posted: list[tuple[str, bytes]] = field(default_factory=list)
    """Path and body."""
    status: int = 200
    """The answer."""


@contextmanager
def receiver() -> Iterator[Received]:
    """Serve on a free port of this machine."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # what a client makes of a POST that was redirected
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            received.posted.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(received.status)
            if received.status in (301, 302, 307, 308):
                self.send_header("location", f"{received.url}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        received.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()
