"""Import vLLM, start its engine process and ask it. No other module imports vLLM."""

import asyncio
import itertools
import logging
import os
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from unstable_stream.errors import EngineDiedError, EngineError
from unstable_stream.inference.engine import Adapter
from unstable_stream.inference.vllm.process_variables import child_environment, set_defaults

_OLDEST: Final = (0, 32)
"""Before it vLLM decoded requests in flight with another adapter when one was loaded (#47724), and took
cached prompts of one adapter for another of the same name (#30931)."""
_HEALTH_CHECK_S: Final = 1.0


class VllmClient:
    """vLLM's engine process, whose failures it raises as :class:`~unstable_stream.errors.EngineError`."""

    llm: Any
    """vLLM's ``AsyncLLM``; set by :meth:`start`."""

    def __init__(self, model_path: str) -> None:
        """Import vLLM, which takes 9 s."""
        set_defaults(offline=Path(model_path).is_dir())
        self._model_path = model_path
        self._request_ids = itertools.count()
        # Said while vLLM is imported, before it reads its own log level.
        logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
        try:
            from vllm import SamplingParams, __version__
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.exceptions import VLLMError
            from vllm.inputs.engine import tokens_input
            from vllm.lora.request import LoRARequest
            from vllm.platforms import current_platform
            from vllm.sampling_params import RequestOutputKind
            from vllm.v1.engine.async_llm import AsyncLLM
            from vllm.v1.engine.exceptions import EngineDeadError
        except ModuleNotFoundError as error:
            if error.name != "vllm":
                raise
            raise EngineError(
                "vLLM is not installed; run pip install 'unstable_stream[vllm]' where there is a CUDA GPU "
                "or make vllm-env in a clone where there is none, or choose another engine"
            ) from error
        check_version(__version__)
        self.on_cpu = bool(current_platform.is_cpu())
        self._engine_args: Any = AsyncEngineArgs
        self._async_llm: Any = AsyncLLM
        self._dead_error: type[Exception] = EngineDeadError
        self._error: type[Exception] = VLLMError
        self._final: Any = RequestOutputKind.FINAL_ONLY
        self._lora: Any = LoRARequest
        self._parameters: Any = SamplingParams
        self._tokens: Any = tokens_input

    def start(self, arguments: Mapping[str, Any], *, compiled: bool, num_threads: int | None) -> None:
        """Load the model, with arguments of vLLM's ``AsyncEngineArgs``."""
        with child_environment(on_cpu=self.on_cpu, compiled=compiled, num_threads=num_threads):
            try:
                self.llm = self._async_llm.from_engine_args(self._engine_args(**arguments))
            # TypeError for an unknown argument; the others for a model or a machine that will not do.
            except (RuntimeError, ValueError, TypeError, OSError, self._error) as error:
                raise EngineError(
                    f"vLLM could not start with model {self._model_path}: {error}; "
                    "its engine process says more on stderr, VLLM_LOGGING_LEVEL=INFO says most"
                ) from error

    def lora_request(self, adapter: Adapter, number: int) -> object:
        """Return vLLM's name for an adapter in a slot."""
        return self._lora(lora_name=adapter.uid, lora_int_id=number, lora_path=adapter.path)

    async def complete(
        self, prompt: Sequence[int], lora_request: object | None, failed: str, **parameters: Any
    ) -> Any:
        """Return vLLM's ``CompletionOutput``. ``failed`` says what vLLM did not do if it raises an error."""
        request_id = f"unstable-stream-{next(self._request_ids)}"
        given = self._tokens(list(prompt))
        try:
            settings = self._parameters(
                flat_logprobs=True, detokenize=False, output_kind=self._final, **parameters
            )
            async for result in self.llm.generate(given, settings, request_id, lora_request=lora_request):
                output = result.outputs[0]
        except self._dead_error as error:
            raise self._dead() from error
        except self._error as error:
            raise EngineError(f"vLLM {failed}: {error.__cause__ or error}") from error
        return output

    async def ask(self, call: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
        """Await a call into the engine process; return its result and what it raised.

        vLLM raises a plain ``Exception``, and never answers once the process has died, hence the look at its
        health.
        """
        asked = asyncio.ensure_future(call)
        try:
            while not asked.done():
                await asyncio.wait({asked}, timeout=_HEALTH_CHECK_S)
                if not asked.done() and self.llm.errored:
                    raise self._dead()
        finally:
            asked.cancel()
        error = asked.exception()
        if isinstance(error, self._dead_error):
            raise self._dead()
        return (None, error) if error is not None else (asked.result(), None)

    def _dead(self) -> EngineDiedError:
        return EngineDiedError(
            f"vLLM's engine process for {self._model_path} has died, and all its requests with it; the "
            "reason is on stderr (too little memory?); start a new engine"
        )


def check_version(version: str) -> None:
    """Raise :class:`~unstable_stream.errors.EngineError` for a vLLM that is too old."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        raise EngineError(
            f"vLLM is {version}; expected {_OLDEST[0]}.{_OLDEST[1]} or newer: older ones may generate "
            "with another adapter than asked for; run pip install --upgrade 'unstable_stream[vllm]' where "
            "there is a CUDA GPU or make vllm-env in a clone where there is none"
        )
