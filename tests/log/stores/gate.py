"""A gate before a server: connections pass, end as those to a server that is down, are answered 503, or are
held without a word, as by a server that has vanished.
"""

import contextlib
import selectors
import socket
import threading
from typing import Self

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Gate:
    """Listens on a port of its own and passes bytes on to ``port``; use as ``with``."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(0.1)
        self.port: int = self._listening.getsockname()[1]
        self.state = "open"
        """``open``, ``closed`` (connections end at once), ``busy`` (every request is answered 503) or
        ``silent`` (connections stay, and nothing passes).
        """
        self.turned_away = 0
        """Connections that were not let through."""
        self.passed = 0
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._accept, name="gate")]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def close_now(self, state: str = "closed") -> None:
        """Let nothing through from now on; connections that are open end, unless it is ``silent``."""
        self.state = state

    def _accept(self) -> None:
        while not self._ends.is_set():
            try:
                connection, _ = self._listening.accept()
            except TimeoutError:
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), name="gate")
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if self.state != "open":
                self.turned_away += 1
                while self.state == "silent" and not self._ends.wait(0.02):
                    pass
                if self.state == "busy":
                    connection.settimeout(5)
                    connection.recv(1 << 16)
                    connection.sendall(_BUSY)
                return
            self.passed += 1
            with socket.create_connection(("127.0.0.1", self._behind)) as behind:
                self._pass_on(connection, behind)

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(one, selectors.EVENT_READ, other)
            ready.register(other, selectors.EVENT_READ, one)
            while not self._ends.is_set():
                if self.state != "open":
                    self.turned_away += 1
                    while self.state == "silent" and not self._ends.wait(0.02):
                        pass
                    return
                for key, _ in ready.select(timeout=0.1):
                    assert isinstance(key.fileobj, socket.socket)
                    piece = key.fileobj.recv(1 << 16)
                    if not piece:
                        return
                    key.data.sendall(piece)
