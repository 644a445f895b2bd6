"""A real chat endpoint on this machine, which misbehaves as endpoints do."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest

KEY = "sk-secret-0123456789"
KEY_ENV = "TEST_ENDPOINT_KEY"

Answer: TypeAlias = tuple[int, dict[str, Any] | bytes]
"""Status, and the object or the bytes of the body."""


def completion(text: object, finish_reason: object = "length", **message: object) -> Answer:
    return 200, {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


class Endpoint:
    """A chat endpoint; ``answer`` decides what each request gets, told its number and body."""

    def __init__(self) -> None:
        self.answer: Callable[[int, dict[str, Any]], Awaitable[Answer]] | None = None
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.url = ""
        self.content_type = "application/json"

    def replies(self, *answers: Answer) -> None:
        """Give these answers in turn, the last one for ever."""

        async def answer(number: int, _: dict[str, Any]) -> Answer:
            return answers[min(number, len(answers) - 1)]

        self.answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        body = json.loads(await reader.readexactly(length))
        self.heads.append(head)
        self.bodies.append(body)
        assert self.answer is not None
        status, content = await self.answer(len(self.bodies) - 1, body)
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: {self.content_type}\r\nretry-after-ms: 1\r\n"
            f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode()
            + data
        )
        await writer.drain()
        writer.close()


@pytest.fixture
async def endpoint(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Endpoint]:
    """A running endpoint, the key in the environment, and a proxy that must not be asked for it."""
    monkeypatch.setenv(KEY_ENV, KEY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    made = Endpoint()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    yield made
    server.close()
