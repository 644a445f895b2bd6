"""The chat client against a real HTTP server on this machine, which misbehaves as endpoints do."""

import asyncio
import logging
import traceback
from typing import Any

import pytest

from tests.inference.endpoint import KEY, KEY_ENV, Answer, Endpoint, completion
from tests.inference.endpoint import endpoint as endpoint  # a fixture
from unstable_stream.errors import ConfigError, EngineError, EngineOverloadedError
from unstable_stream.inference.engine import SamplingSettings
from unstable_stream.inference.openai import OpenAIEngine

SETTINGS = SamplingSettings(max_tokens=12, temperature=0.4, top_p=0.8)


async def _ask(endpoint: Endpoint, **options: Any) -> Any:
    """Ask once; returns the reply or raises what the engine raised."""
    options = {"pause_s": 0.0, **options}
    engine = OpenAIEngine("some/model", base_url=endpoint.url, api_key_env=KEY_ENV, **options)
    try:
        return await engine.reply("your move", SETTINGS)
    finally:
        await engine.close()


async def test_asks_with_the_settings_and_key(endpoint: Endpoint) -> None:
    """One user message, all sampling settings, the key as bearer; the reply with its end."""
    endpoint.replies(completion("[4]"))
    reply = await _ask(endpoint)
    assert (reply.text, reply.finish_reason, reply.no_answers) == ("[4]", "length", 0)
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
    endpoint.replies((status, {"error": {"message": "busy"}}), (status, {}), completion("[4]"))
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
        return completion("late")

    endpoint.answer = never
    with pytest.raises(EngineOverloadedError, match=r"no answer within 0\.1 s, after 1 attempts"):
        await _ask(endpoint, timeout_s=0.1, max_retries=0)
    released.set()


@pytest.mark.parametrize("kind", ["application/json", "text/html"])
@pytest.mark.parametrize(
    "body",
    [
        *(b"<html>a proxy</html>", b"", b"[]", b'"text"', b"null", b'{"choices": []}'),
        *(b'{"choices": [{}]}', b'{"choices": [null]}', pytest.param(b"[" * 100_000, id="nested too deep")),
    ],
)
async def test_an_answer_that_is_no_completion_is_no_end_of_the_worker(
    endpoint: Endpoint, body: bytes, kind: str
) -> None:
    endpoint.content_type = kind
    endpoint.replies((200, body))
    with pytest.raises(EngineOverloadedError, match=r"no chat completion|without any choice"):
        await _ask(endpoint)


async def test_an_endpoint_that_is_not_there_cannot_be_reached(endpoint: Endpoint) -> None:
    endpoint.url = "http://127.0.0.1:9/v1"
    with pytest.raises(EngineOverloadedError, match="cannot be reached"):
        await _ask(endpoint, max_retries=0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (completion(None, reasoning="let me see"), "max_tokens = 12 is too small for a model that reasons"),
        (completion(""), "max_tokens = 12 is too small"),
        (completion("<think>[4] or"), "max_tokens = 12 is too small"),
        (completion([{"type": "thinking", "thinking": "so"}]), "max_tokens = 12 is too small"),
        (completion(" \n", "stop"), "finish_reason 'stop', no text"),
        (completion("<think>[4]</think>\n", "stop"), "finish_reason 'stop', no text"),
        (completion("As far as", "content_filter"), "finish_reason 'content_filter'"),
        (completion("half", "error"), "finish_reason 'error'"),
        (completion(None, "stop", refusal="I will not"), "a refusal: I will not"),
        (completion(None, "tool_calls", tool_calls=[{"id": "1", "type": "function"}]), "a call of a tool"),
        (completion(7, 7), "finish_reason '7', no text"),
        (completion({"text": "[4]"}, None), "finish_reason 'stop', no text"),
    ],
)
async def test_no_answer_is_asked_again_and_then_given_up(
    endpoint: Endpoint, answer: Answer, words: str
) -> None:
    endpoint.replies(answer)
    with pytest.raises(EngineOverloadedError, match="after 3 attempts, answered without an") as caught:
        await _ask(endpoint)
    assert words in str(caught.value)
    assert "some/model" in str(caught.value)
    assert len(endpoint.bodies) == 3


async def test_an_answer_after_none_counts_those_before_it(endpoint: Endpoint) -> None:
    endpoint.replies(completion(None), (200, b"<html>"), completion("[4]", "stop"))
    reply = await _ask(endpoint)
    assert (reply.text, reply.finish_reason, reply.no_answers) == ("[4]", "stop", 2)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>so</think>[4]", "<think>so</think>[4]"),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "[4]"}], "[4]"),
    ],
)
async def test_an_answer_beside_thoughts_is_one(endpoint: Endpoint, content: object, text: str) -> None:
    endpoint.replies(completion(content, "stop"))
    assert (await _ask(endpoint)).text == text


async def test_a_request_has_the_fields_that_the_opponent_names(endpoint: Endpoint) -> None:
    """As OpenAI's reasoning models and a vLLM server want them."""
    endpoint.replies(completion("[4]"))
    extra = {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    await _ask(endpoint, max_tokens_name="max_completion_tokens", own_temperature=True, extra_body=extra)
    (body,) = endpoint.bodies
    assert body == {
        "model": "some/model",
        "messages": [{"role": "user", "content": "your move"}],
        "max_completion_tokens": 12,
        **extra,
    }


@pytest.mark.parametrize(
    ("said", "name", "remedy"),
    [
        ("'max_tokens' is not supported", "max_tokens", 'set max_tokens_name = "max_completion_tokens"'),
        ("extra: max_completion_tokens", "max_completion_tokens", 'set max_tokens_name = "max_tokens"'),
        ("'temperature' does not support 0.4", "max_tokens", 'set temperature = "default"'),
        (
            "'max_tokens' is too large: 12. The model's context length is 8",
            "max_tokens",
            "context length and",
        ),
    ],
)
async def test_a_refused_setting_names_the_key_to_set(
    endpoint: Endpoint, said: str, name: str, remedy: str
) -> None:
    endpoint.replies((400, {"error": {"message": said}}))
    with pytest.raises(EngineError) as caught:
        await _ask(endpoint, max_tokens_name=name)
    assert remedy in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_no_more_at_once_than_allowed(endpoint: Endpoint) -> None:
    """Nine callers, three places: three under way at the most, and all are answered."""
    under_way = most = 0
    three = asyncio.Barrier(3)

    async def answer(number: int, body: dict[str, Any]) -> Answer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await three.wait()
        under_way -= 1
        return completion("[4]")

    endpoint.answer = answer
    engine = OpenAIEngine("m", base_url=endpoint.url, api_key_env=KEY_ENV, max_concurrency=3)
    replies = await asyncio.gather(*(engine.reply("x", SETTINGS) for _ in range(9)))
    await engine.close()
    assert [reply.text for reply in replies] == ["[4]"] * 9
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
