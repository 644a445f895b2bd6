"""A chat endpoint that fails as endpoints do: it refuses, limits, stalls, hangs up and talks nonsense."""

import asyncio
import json
import random
import threading
from collections import Counter
from types import TracebackType
from typing import Self

_STALL_S = 3.0


class BadEndpoint:
    """Serves on loopback from a thread of its own. Use it with ``with``."""

    def __init__(self, seed: int, bad: float = 0.2) -> None:
        """``bad`` is the share of requests that get no proper answer."""
        self._random = random.Random(seed)
        self._bad = bad
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.answered: Counter[str] = Counter()
        """Requests by what they got."""
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        )
        self._server = starting.result()
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
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            headers = {
                name: text for name, _, text in (line.partition(":") for line in head.lower().splitlines())
            }
            await reader.readexactly(int(headers["content-length"]))
            kind = "answer"
            if self._random.random() < self._bad:
                kind = self._random.choice(["limited", "failed", "refused", "nonsense", "stalled", "hung up"])
            self.answered[kind] += 1
            if kind == "stalled":
                await asyncio.sleep(_STALL_S)
            if kind != "hung up":
                writer.write(_response(kind, self._random.randrange(16), headers.get("authorization", "")))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.answered["client gone"] += 1  # its worker was killed
        finally:
            writer.close()


def _response(kind: str, cell: int, key: str) -> bytes:
    status = {"limited": 429, "failed": 500, "refused": 400}.get(kind, 200)
    body = json.dumps({"error": {"message": f"{kind}: {key}"}}).encode()
    if kind == "nonsense":
        body = b"<html>a proxy was here</html>"
    elif status == 200:
        message = {"role": "assistant", "content": f"[{cell}]"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        body = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nretry-after-ms: 5\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
