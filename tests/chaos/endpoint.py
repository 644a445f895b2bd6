"""A chat endpoint that fails as endpoints do: it refuses, limits, stalls, hangs up and talks nonsense."""

import asyncio
import random
import threading
from collections import Counter
from types import TracebackType
from typing import Self

from tests.inference.endpoint import Answer, Endpoint, completion

_STALL_S = 3.0


class _HungUpError(Exception):
    """A request gets no answer at all."""


class BadEndpoint:
    """Serves on loopback from a thread of its own. Use it with ``with``."""

    def __init__(self, seed: int, bad: float = 0.2) -> None:
        """``bad`` is the share of requests that get no proper answer."""
        self._random = random.Random(seed)
        self._bad = bad
        self._endpoint = Endpoint()
        self._endpoint.answer = self._answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.answered: Counter[str] = Counter()
        """Requests by what they got."""
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._endpoint.serve(reader, writer)
        except _HungUpError:
            pass  # as it is to
        except (ConnectionError, asyncio.IncompleteReadError):
            self.answered["client gone"] += 1  # its worker was killed
        finally:
            writer.close()

    async def _answer(self, number: int, body: object) -> Answer:
        kind = "answer"
        if self._random.random() < self._bad:
            kind = self._random.choice(["limited", "failed", "refused", "nonsense", "stalled", "hung up"])
        self.answered[kind] += 1
        if kind == "hung up":
            raise _HungUpError
        if kind == "stalled":
            await asyncio.sleep(_STALL_S)
        if kind == "nonsense":
            return 200, b"<html>a proxy was here</html>"
        if status := {"limited": 429, "failed": 500, "refused": 400}.get(kind):
            return status, {"error": {"message": f"{kind}: {self._endpoint.heads[-1]}"}}  # with the key
        return completion(f"[{self._random.randrange(16)}]", "stop")
