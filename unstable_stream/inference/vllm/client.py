"""Import vLLM, start its engine process and ask it; what it does not take, and which variables it reads.

vLLM is imported by :class:`VllmClient` alone, so that a configuration is checked where it is not installed.
"""

import asyncio
import contextlib
import itertools
import logging
import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from unstable_stream.errors import ConfigError, EngineDiedError, EngineError
from unstable_stream.inference.cores import available_cores
from unstable_stream.inference.engine import Adapter

_HEALTH_CHECK_S: Final = 1.0

VLLM_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that ``max_lora_rank`` may have."""

_OWN_ARGUMENTS: Final[Mapping[str, str]] = {
    "enable_lora": "set max_loras; 0 is the base model alone",
    "enable_sleep_mode": "nothing lets the engine sleep, and vLLM has lost adapters over it (#53888, #39934)",
    "logprobs_mode": "log-probabilities are those of the distribution sampled from",
    "lora_target_modules": "vLLM would play an adapter of other modules as the base model (#55193)",
    "max_cpu_loras": "it follows from max_loras",
    "max_lora_rank": "it follows from the rank of the adapter",
    "max_loras": "set max_loras of the engine",
    "model": "set the model of the run",
    "worker_extension_cls": "the engine's own one checks adapters and ends orphans",
}
"""Arguments of vLLM that the engine decides, and why or what to set instead."""

DEFAULTS: Final[Mapping[str, str]] = {
    # Nothing is reported to anyone.
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Talk goes to stderr, and only what is wrong.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    # On a CPU: compute in the engine process itself, not in a child of it that is pinned to cores. Starts in
    # two thirds of the time, takes 0.9 GB less, and several engines on a host do not fight for one core.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Variables that are set before vLLM is imported."""

OFFLINE: Final[Mapping[str, str]] = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Variables that are set too if the model is a local directory: vLLM then asks no hub."""

OWNER_VARIABLE: Final = "UNSTABLE_STREAM_ENGINE_OWNER_PID"
"""The variable that tells vLLM's processes which process owns the engine; see
:mod:`.worker_extension`."""


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
            from vllm import SamplingParams
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


def check_extra_engine_args(extra: Mapping[str, Any]) -> None:
    """Check arguments for vLLM; raises :class:`ConfigError` for one that the engine decides itself."""
    for name, reason in _OWN_ARGUMENTS.items():
        if name in extra:
            raise ConfigError(f"extra_engine_args sets {name}: remove it; {reason}")


# -- environment variables that make vLLM quiet, private and quick to start -----------------------------


def set_defaults(*, offline: bool) -> None:
    """Set the variables above that the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if offline:
        for name, value in OFFLINE.items():
            os.environ.setdefault(name, value)


@contextlib.contextmanager
def child_environment(*, on_cpu: bool, compiled: bool, num_threads: int | None = None) -> Iterator[None]:
    """Variables for vLLM's processes alone, which inherit them when they are started in this context.

    Args:
        on_cpu: Whether the model runs on the CPU.
        compiled: Whether ``torch.compile`` may run in them.
        num_threads: Compute threads on the CPU. By default those that the user has set, else all cores but
            one. (Ray sets 1 in an actor that asks for no core, and it cannot be told from the user's.)
    """
    wanted = {
        # vLLM's deprecations, and torch's remark on memory nodes.
        "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore"),
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        # Never the user's to set: inherited from an outer engine it would name the wrong process.
        OWNER_VARIABLE: str(os.getpid()),
    }
    if on_cpu:
        # One core is left to those who play and learn: a compute thread that waits for a core stops all
        # others at every layer. Measured on 2 busy cores: 27 s instead of 0.25 s for 64 short completions.
        default = os.environ.get("OMP_NUM_THREADS", str(max(1, available_cores() - 1)))
        wanted["OMP_NUM_THREADS"] = default if num_threads is None else str(num_threads)
    if not compiled:
        wanted["TORCH_COMPILE_DISABLE"] = os.environ.get("TORCH_COMPILE_DISABLE", "1")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
