"""Ask fixed opponents behind an OpenAI-compatible chat endpoint: OpenRouter, a vLLM server, OpenAI."""

import asyncio
import os
from typing import TYPE_CHECKING, Final, TypeGuard

from unstable_stream.errors import ConfigError, EngineError, EngineOverloadedError
from unstable_stream.inference.engine import ChatReply, SamplingSettings

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletion

__all__ = ["OpenAIEngine"]

OPENROUTER_URL: Final = "https://openrouter.ai/api/v1"

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
        self._client = openai.AsyncOpenAI(
            api_key=key, base_url=base_url, timeout=timeout_s, max_retries=max_retries
        )
        self._slots = asyncio.Semaphore(max_concurrency)

    def __repr__(self) -> str:
        return f"OpenAIEngine({self._model!r}, base_url={self._base_url!r}, api_key_env={self._key_env!r})"

    async def reply(self, prompt: str, sampling: SamplingSettings) -> ChatReply:
        """Answer one user message.

        ``stop_token_ids`` are ignored: an endpoint knows other tokens.

        Raises:
            EngineOverloadedError: Retries ran out on overload, rate limit, time-out or lost connection; or
                the answer is no chat completion.
            EngineError: Refused key, unknown model, bad request.
        """
        async with self._slots:
            completion = await self._ask(prompt, sampling)
        if not completion.choices:
            # OpenRouter reports a failing provider with status 200 and no choices.
            raise EngineOverloadedError(f"{self._model} at {self._base_url} answered without any choice")
        choice = completion.choices[0]
        usage = completion.usage
        return ChatReply(
            text=choice.message.content or "",
            finish_reason=choice.finish_reason or "stop",
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _ask(self, prompt: str, sampling: SamplingSettings) -> "ChatCompletion":
        import openai

        failure: EngineError
        try:
            answer: object = await self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
            )
            if _is_completion(answer):
                return answer
            failure = self._no_answer(repr(answer)[:200])
        except openai.OpenAIError as error:
            failure = self._translate(error)
        except ValueError as error:  # called JSON, and is none
            failure = self._no_answer(str(error))
        # Outside the handler: endpoints echo refused keys, and a chained exception would print that.
        raise failure

    def _no_answer(self, found: str) -> EngineOverloadedError:
        if self._key_env is not None:
            found = found.replace(self._client.api_key, "(key)")
        return EngineOverloadedError(
            f"{self._model} at {self._base_url} answered with status 200 and no chat completion: {found}; "
            "a proxy before it may have failed"
        )

    def _translate(self, error: "openai.OpenAIError") -> EngineError:
        import openai

        where = f"{self._model} at {self._base_url}"
        attempts = f"after {self._max_retries + 1} attempts"
        if isinstance(error, openai.APITimeoutError):
            return EngineOverloadedError(f"{where} gave no answer within {self._timeout_s:g} s, {attempts}")
        if isinstance(error, openai.APIConnectionError):
            return EngineOverloadedError(f"{where} cannot be reached, {attempts}; check base_url and network")
        reason = str(error)
        if self._key_env is not None:
            reason = reason.replace(self._client.api_key, "(key)")
        if not isinstance(error, openai.APIStatusError):
            return EngineError(f"{where} failed: {reason}")
        status = error.status_code
        if status in (408, 409, 429) or status >= 500:
            return EngineOverloadedError(f"{where} answered {status} {attempts}: {reason}")
        remedy = _REMEDIES.get(status, "the request was refused").format(key_env=self._key_env)
        return EngineError(f"{where} answered {status}: {remedy} ({reason})")


def _is_completion(answer: object) -> "TypeGuard[ChatCompletion]":
    """Return whether an answer has the form of its type: the client checks nothing, and passes on text."""
    from openai.types.chat import ChatCompletion, ChatCompletionMessage

    if not isinstance(answer, ChatCompletion):
        return False
    choices: object = answer.choices
    return not choices or (
        isinstance(choices, list) and isinstance(getattr(choices[0], "message", None), ChatCompletionMessage)
    )
