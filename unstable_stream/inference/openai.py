"""Ask fixed opponents behind an OpenAI-compatible chat endpoint: OpenRouter, a vLLM server, OpenAI."""

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard
from urllib.parse import urlsplit

from unstable_stream.errors import ConfigError, EngineError, EngineOverloadedError
from unstable_stream.games.templates import after_thoughts
from unstable_stream.inference.engine import ChatReply, SamplingSettings

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion
    from openai.types.chat.chat_completion import Choice

OPENROUTER_URL: Final = "https://openrouter.ai/api/v1"

_MOST_NO_ANSWERS: Final = 3
"""In a row; each may cost the tokens of a whole answer, so there are fewer than of other retries."""
_NO_ANSWERS: Final = frozenset({"content_filter", "error"})
"""Finish reasons of what is no answer, whatever text there is."""
_REMEDIES: Final = {
    400: "the endpoint does not accept this request; check the model's name, context length and max_tokens",
    401: "the key was refused; check the environment variable {key_env}",
    402: "the account behind {key_env} has no credit left",
    403: "the key in {key_env} may not use this model",
    404: "no such model or address; check the model's name and base_url",
}


class OpenAIEngine:
    """Asks one model of one endpoint. Implements :class:`~unstable_stream.inference.engine.ChatEngine`.

    The key is read from the environment when the engine is made; it is in no message, log line or ``repr``.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = OPENROUTER_URL,
        api_key_env: str | None = "OPENROUTER_API_KEY",
        timeout_s: float = 120.0,
        max_retries: int = 5,
        max_concurrency: int = 64,
        max_tokens_name: str = "max_tokens",
        own_temperature: bool = False,
        extra_body: Mapping[str, Any] | None = None,
        pause_s: float = 0.5,
    ) -> None:
        """Prepare a client; connects at the first reply.

        Args:
            model: The endpoint's name for the model, such as ``google/gemini-2.0-flash-lite-001``.
            base_url: Where ``/chat/completions`` is found.
            api_key_env: Name of the environment variable with the key; ``None`` for endpoints that want none.
            timeout_s: Longest wait for one attempt.
            max_retries: Attempts after the first, with growing pauses (or as long as the endpoint asks for),
                after time-outs, lost connections, 408, 409, 429 and 5xx.
            max_concurrency: Most requests under way; more wait their turn.
            max_tokens_name: The endpoint's name for the limit of an answer's tokens.
            own_temperature: The endpoint samples as it likes: no temperature is sent, no top-p.
            extra_body: Merged into each request.
            pause_s: The pause before it is asked again after no answer; doubled each time.

        Raises:
            ConfigError: The environment variable is not set.
        """
        # Here, not above: it takes two seconds to load, and most runs have no such opponent.
        import openai

        key = "none" if api_key_env is None else os.environ.get(api_key_env, "").strip()
        if not key:
            raise ConfigError(
                f"{model} at {base_url} needs a key and the environment variable {api_key_env} is not set; "
                "set it, or choose scripted opponents, which need none"
            )
        self._model = model
        self._base_url = base_url
        self._key_env = api_key_env
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._max_tokens_name = max_tokens_name
        self._own_temperature = own_temperature
        self._extra_body = dict(extra_body or {})
        self._pause_s = pause_s
        # No proxy reaches this machine.
        here = urlsplit(base_url).hostname in ("localhost", "127.0.0.1", "::1")
        client = openai.DefaultAsyncHttpxClient(trust_env=not here)
        self._client = openai.AsyncOpenAI(
            api_key=key, base_url=base_url, timeout=timeout_s, max_retries=max_retries, http_client=client
        )
        self._slots = asyncio.Semaphore(max_concurrency)

    def __repr__(self) -> str:
        return f"OpenAIEngine({self._model!r}, base_url={self._base_url!r}, api_key_env={self._key_env!r})"

    async def reply(self, prompt: str, sampling: SamplingSettings) -> ChatReply:
        """Answer one user message.

        No answer is asked for again, with growing pauses: one without text, such as a reasoning model's that
        used up the limit of tokens for its thoughts, a refusal, a call of a tool, one that a filter stopped.
        ``stop_token_ids`` are ignored: an endpoint knows other tokens.

        Raises:
            EngineOverloadedError: Retries ran out on overload, rate limit, time-out or lost connection, on
                what is no chat completion, or on no answer.
            EngineError: Refused key, unknown model, bad request.
        """
        attempts = min(_MOST_NO_ANSWERS, self._max_retries + 1)
        found = ""
        async with self._slots:
            for attempt in range(attempts):
                if attempt:
                    await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
                answer = await self._ask(prompt, sampling)
                if not _is_completion(answer):
                    found = (
                        "with status 200 and no chat completion, as a proxy may that fails: "
                        f"{self._hidden(str(answer)[:200])}"
                    )
                elif not answer.choices:
                    # OpenRouter reports a failing provider with status 200 and no choices.
                    found = "without any choice"
                else:
                    choice = answer.choices[0]
                    text, finish_reason = _text(choice.message.content), str(choice.finish_reason or "stop")
                    if finish_reason not in _NO_ANSWERS and after_thoughts(text).strip():
                        return ChatReply(text, finish_reason, no_answers=attempt)
                    found = f"without an answer: {self._hidden(_described(choice, finish_reason, sampling))}"
        raise EngineOverloadedError(
            f"{self._model} at {self._base_url}, after {attempts} attempts, answered {found}"
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _ask(self, prompt: str, sampling: SamplingSettings) -> object:
        """Return what the endpoint answered with status 200, which may be anything."""
        import openai

        settings: dict[str, Any] = {self._max_tokens_name: sampling.max_tokens}
        if not self._own_temperature:
            settings["temperature"] = sampling.temperature
            if sampling.top_p < 1:
                settings["top_p"] = sampling.top_p
        try:
            return await self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                extra_body=self._extra_body,
                **settings,
            )
        except openai.OpenAIError as error:
            failure = self._translate(error)
        except (ValueError, RecursionError) as error:  # called JSON, and is none, or nested too deep
            return str(error)
        # Outside the handler: endpoints echo refused keys, and a chained exception would print that.
        raise failure

    def _hidden(self, text: str) -> str:
        return text if self._key_env is None else text.replace(self._client.api_key, "(key)")

    def _translate(self, error: "openai.OpenAIError") -> EngineError:
        import openai

        where = f"{self._model} at {self._base_url}"
        attempts = f"after {self._max_retries + 1} attempts"
        if isinstance(error, openai.APITimeoutError):
            return EngineOverloadedError(f"{where} gave no answer within {self._timeout_s:g} s, {attempts}")
        if isinstance(error, openai.APIConnectionError):
            return EngineOverloadedError(f"{where} cannot be reached, {attempts}; check base_url and network")
        reason = self._hidden(str(error))
        if not isinstance(error, openai.APIStatusError):
            return EngineError(f"{where} failed: {reason}")
        status = error.status_code
        if status in (408, 409, 429) or status >= 500:
            return EngineOverloadedError(f"{where} answered {status} {attempts}: {reason}")
        remedy = self._refused_setting(reason) if status in (400, 422) else None
        remedy = remedy or _REMEDIES.get(status, "the request was refused").format(key_env=self._key_env)
        return EngineError(f"{where} answered {status}: {remedy} ({reason})")

    def _refused_setting(self, reason: str) -> str | None:
        """Return which key of the opponent to set, if the endpoint refuses a setting by its name."""
        if "context length" in reason or "too large" in reason:
            return None
        if self._max_tokens_name in reason:
            other = "max_tokens" if self._max_tokens_name != "max_tokens" else "max_completion_tokens"
            return f'set max_tokens_name = "{other}" for this opponent'
        if "temperature" in reason and not self._own_temperature:
            return 'set temperature = "default" for this opponent'
        return None


def _text(content: object) -> str:
    """Return the text of a message; some endpoints give a list of parts, thoughts among them."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def _described(choice: "Choice", finish_reason: str, sampling: SamplingSettings) -> str:
    """Say what there is in the place of an answer, and what to do about it."""
    message = choice.message
    said = f"finish_reason {finish_reason!r}"
    if finish_reason == "length":
        return (
            f"{said}: max_tokens = {sampling.max_tokens} is too small for a model that reasons, whose "
            "thoughts count; raise max_tokens for this opponent"
        )
    if message.refusal:  # the client checks no types: it may be anything
        return f"{said}, a refusal: {str(message.refusal)[:200]}"
    return f"{said}, a call of a tool" if message.tool_calls else f"{said}, no text"


def _is_completion(answer: object) -> "TypeGuard[ChatCompletion]":
    """Return whether an answer has the form of its type: the client checks nothing, and passes on text."""
    from openai.types.chat import ChatCompletion, ChatCompletionMessage

    if not isinstance(answer, ChatCompletion):
        return False
    choices: object = answer.choices
    return not choices or (
        isinstance(choices, list) and isinstance(getattr(choices[0], "message", None), ChatCompletionMessage)
    )
