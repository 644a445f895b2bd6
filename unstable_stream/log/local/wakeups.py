"""Wake the consumers of all processes after a commit, without polling.

Each log that has a waiting consumer binds a Unix datagram socket in a directory beside the log file;
whoever commits sends one byte to every socket there. A lost byte costs no more than the consumers'
own slow re-check.
"""

import asyncio
import hashlib
import os
import secrets
import socket
import tempfile
import time
from contextlib import suppress
from typing import Final

_LONGEST_ADDRESS: Final = 103  # bytes: macOS allows 104 with the final zero, Linux 108
_NAME_BYTES: Final = 16
_SETTLED_NS: Final = 100_000_000  # directory times are coarse: a listing this fresh may miss an addition


def wakeup_directory(path: str) -> str:
    """Return the directory of the sockets of the log at ``path``, the same for every process.

    It lies beside the log, or in the temporary directory where that name is too long for a socket.
    """
    beside = f"{path}-wakeups"
    if len(os.fsencode(beside)) + 1 + _NAME_BYTES <= _LONGEST_ADDRESS:
        return beside
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:24]
    return os.path.join(tempfile.gettempdir(), f"unstable-stream-{digest}")


class Ringer:
    """Rings every doorbell; used by the write thread only."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._changed_ns = -1
        self._addresses: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def ring(self) -> None:
        """Send one byte to each consumer's socket and remove those of processes that are gone."""
        for address in self._listed():
            try:
                self._socket.sendto(b"!", address)
            except ConnectionRefusedError:  # left behind by a process that was killed
                with suppress(OSError):
                    os.unlink(address)
            except OSError:
                continue  # its queue is full, so it is awake already; or it has just gone

    def close(self) -> None:
        self._socket.close()

    def _listed(self) -> list[str]:
        try:
            changed_ns = os.stat(self._directory).st_mtime_ns
            if changed_ns != self._changed_ns:
                names = os.listdir(self._directory)
                self._addresses = [os.path.join(self._directory, name) for name in names]
                settled = time.time_ns() - changed_ns > _SETTLED_NS
                self._changed_ns = changed_ns if settled else -1
        except OSError:
            return []  # nobody has waited yet
        return self._addresses


class Doorbell:
    """The bell that the consumers of one open log wait for. It belongs to the event loop."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._socket: socket.socket | None = None
        self._address = ""
        self._rings = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def bind(self) -> bool:
        """Make the doorbell known to writers; return whether it was unknown before.

        If it was unknown, look at the log once more before waiting.

        Raises :class:`OSError` where no socket can be made, e.g. on some shared folders.
        """
        if self._socket is not None:
            return False
        bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bell.setblocking(False)
            os.makedirs(self._directory, exist_ok=True)
            self._address = os.path.join(self._directory, secrets.token_hex(_NAME_BYTES // 2))
            bell.bind(self._address)
        except OSError:
            bell.close()
            raise
        self._socket = bell
        return True

    def rings(self) -> int:
        """Return a count that moves with every ring; take it before looking at the log."""
        self._collect()
        return self._rings

    async def wait(self, rings: int, timeout_s: float) -> None:
        """Return on the first ring after ``rings`` was taken, at the latest after ``timeout_s``."""
        if self._rings != rings:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        if self._socket is not None and not self._waiters:
            # Only while somebody waits: a busy consumer is not interrupted by every commit.
            loop.add_reader(self._socket, self._collect)
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)
            waiter.cancel()
            if self._socket is not None and not self._waiters:
                loop.remove_reader(self._socket)

    def close(self) -> None:
        """Wake all who wait and take the socket away."""
        self.wake()
        if self._socket is not None:
            if self._waiters:
                asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            with suppress(OSError):
                os.unlink(self._address)
                os.rmdir(self._directory)  # unless others wait; who comes makes it again

    def _collect(self) -> None:
        if self._socket is None:
            return
        rang = False
        with suppress(BlockingIOError):
            while self._socket.recv(16):
                rang = True
        if rang:
            self.wake()

    def wake(self) -> None:
        """End all waits."""
        self._rings += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
