"""The chat client against a real HTTP server on this machine, which misbehaves as endpoints do."""

import asyncio
import json
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from unstable_stream.errors import ConfigError, EngineError, EngineOverloadedError
from unstable_stream.inference.engine import SamplingSettings
from unstable_stream.inference.openai import OpenAIEngine

KEY = "sk-secret-0123456789"
KEY_ENV = "TEST_ENDPOINT_KEY"
SETTINGS = SamplingSettings(max_tokens=12, temperature=0.4, top_p=0.8)

Answer = tuple[int, dict[str, Any] | bytes]
"""Status, and the object or the bytes of the body."""


def _completion(text: str | None) -> Answer:
    return 200, {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": text}},
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
    """A running endpoint, and the key in the environment."""
    monkeypatch.setenv(KEY_ENV, KEY)
    made = Endpoint()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    yield made
    server.close()


async def _ask(endpoint: Endpoint, **options: Any) -> Any:
    """Ask once; returns the reply or raises what the engine raised."""
    engine = OpenAIEngine("some/model", base_url=endpoint.url, api_key_env=KEY_ENV, **options)
    try:
        return await engine.reply("your move", SETTINGS)
    finally:
        await engine.close()


async def test_asks_with_the_settings_and_key(endpoint: Endpoint) -> None:
    """One user message, all sampling settings, the key as bearer; the reply with its counts."""
    endpoint.replies(_completion("[4]"))
    reply = await _ask(endpoint)
    assert (reply.text, reply.finish_reason) == ("[4]", "length")
    assert (reply.prompt_tokens, reply.completion_tokens) == (5, 2)
    assert endpoint.bodies == [
        {
            "model": "some/model",
            "messages": [{"role": "user", "content": "your move"}],
            "max_tokens": 12,
            "temperature": 0.4,
            "top_p": 0.8,
        }
    ]
    assert f"Bearer {KEY}" in endpoint.heads[0]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_tries_again_when_busy(endpoint: Endpoint, status: int) -> None:
    """Two refusals, then an answer."""
    endpoint.replies((status, {"error": {"message": "busy"}}), (status, {}), _completion("[4]"))
    assert (await _ask(endpoint)).text == "[4]"
    assert len(endpoint.bodies) == 3


async def test_gives_up_after_the_last_retry(endpoint: Endpoint) -> None:
    """Busy for ever is an error that may be retried later."""
    endpoint.replies((429, {"error": {"message": "too many requests"}}))
    with pytest.raises(EngineOverloadedError, match=r"answered 429 after 3 attempts.*too many") as caught:
        await _ask(endpoint, max_retries=2)
    assert caught.value.retriable
    assert len(endpoint.bodies) == 3


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, f"refused; check the environment variable {KEY_ENV}"),
        (404, "no such model"),
        (400, "max_tokens"),
    ],
)
async def test_refusals_are_not_repeated(endpoint: Endpoint, status: int, words: str) -> None:
    """Asking again would not help; the message says what would."""
    endpoint.replies((status, {"error": {"message": "no"}}))
    with pytest.raises(EngineError, match=words) as caught:
        await _ask(endpoint)
    assert not caught.value.retriable
    assert len(endpoint.bodies) == 1


async def test_slow_endpoints_time_out(endpoint: Endpoint) -> None:
    """An answer that does not come is given up on."""
    released = asyncio.Event()

    async def never(number: int, body: dict[str, Any]) -> Answer:
        await released.wait()
        return _completion("late")

    endpoint.answer = never
    with pytest.raises(EngineOverloadedError, match=r"no answer within 0\.1 s, after 1 attempts"):
        await _ask(endpoint, timeout_s=0.1, max_retries=0)
    released.set()


@pytest.mark.parametrize("kind", ["application/json", "text/html"])
@pytest.mark.parametrize(
    "body",
    [b"<html>a proxy</html>", b"", b"[]", b'"text"', b"null", b'{"choices": [{}]}', b'{"choices": [null]}'],
)
async def test_an_answer_that_is_no_completion_is_no_end_of_the_worker(
    endpoint: Endpoint, body: bytes, kind: str
) -> None:
    endpoint.content_type = kind
    endpoint.replies((200, body))
    with pytest.raises(EngineOverloadedError, match=r"no chat completion|without any choice"):
        await _ask(endpoint)


async def test_unreachable_and_empty_answers(endpoint: Endpoint) -> None:
    """No server, no choices, no text."""
    endpoint.replies((200, {"id": "1", "object": "x", "created": 0, "model": "m", "choices": []}))
    with pytest.raises(EngineOverloadedError, match="without any choice"):
        await _ask(endpoint)
    endpoint.replies(_completion(None))
    assert (await _ask(endpoint)).text == ""
    endpoint.url = "http://127.0.0.1:9/v1"
    with pytest.raises(EngineOverloadedError, match="cannot be reached"):
        await _ask(endpoint, max_retries=0)


async def test_no_more_at_once_than_allowed(endpoint: Endpoint) -> None:
    """Ten callers, three places: three under way at the most, and all are answered."""
    under_way = most = 0
    full = asyncio.Event()

    async def answer(number: int, body: dict[str, Any]) -> Answer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == 3:
            full.set()
        await full.wait()
        under_way -= 1
        return _completion("[4]")

    endpoint.answer = answer
    engine = OpenAIEngine("m", base_url=endpoint.url, api_key_env=KEY_ENV, max_concurrency=3)
    replies = await asyncio.gather(*(engine.reply("x", SETTINGS) for _ in range(10)))
    await engine.close()
    assert [reply.text for reply in replies] == ["[4]"] * 10
    assert most == 3


async def test_the_key_shows_nowhere(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    """Not in repr, not in the log at its most talkative, not in an error, even if the endpoint echoes it."""
    caplog.set_level(logging.DEBUG)
    engine = OpenAIEngine("m", base_url=endpoint.url, api_key_env=KEY_ENV, max_retries=1)
    shown = [repr(engine), str(engine)]
    for status in (401, 429, 418):
        endpoint.replies((status, {"error": {"message": f"Incorrect API key provided: {KEY}"}}))
        with pytest.raises(EngineError) as caught:
            await engine.reply("x", SETTINGS)
        shown += [repr(caught.value), "".join(traceback.format_exception(caught.value))]
        assert caught.value.__context__ is None
        assert "Incorrect API key provided: (key)" in str(caught.value)
    await engine.close()
    assert caplog.records
    for text in (*shown, caplog.text):
        assert KEY not in text


def test_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before any game is played; an endpoint without keys needs no variable."""
    monkeypatch.delenv(KEY_ENV, raising=False)
    with pytest.raises(ConfigError, match=f"environment variable {KEY_ENV} is not set"):
        OpenAIEngine("m", api_key_env=KEY_ENV)
    assert "api_key_env=None" in repr(OpenAIEngine("m", base_url="http://127.0.0.1:9/v1", api_key_env=None))
