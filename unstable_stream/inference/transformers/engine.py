"""Generate with torch and transformers alone: continuous batches, several adapters in each.

One thread computes. Requests join between decoding steps and leave as soon as they are done, so a batch never
waits for its longest member. Callers may be on any event loop; the loop itself never computes.
"""

import asyncio
import atexit
import contextlib
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from unstable_stream.errors import AdapterError, ConfigError, EngineDiedError, EngineError
from unstable_stream.inference.adapter_proof import AdapterProver, probe_tokens
from unstable_stream.inference.engine import (
    Adapter,
    AdapterResult,
    Completion,
    EngineStats,
    GenerationRequest,
    IdleTime,
    SamplingSettings,
    Throughput,
    Tokens,
    check_request,
    check_tokens,
    diverged,
    uniforms,
)
from unstable_stream.inference.transformers.model import RowDecoder, sample
from unstable_stream.log.cpu_time import spending


@dataclass(slots=True, eq=False)
class _Row:
    """One request that waits or runs."""

    prompt: list[int]
    sampling: SamplingSettings
    adapter: Adapter | None
    seed: int
    max_tokens: int
    stops: frozenset[int]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cancelled: bool = False

    @property
    def reach(self) -> int:
        """The most tokens this row will ever hold."""
        return len(self.prompt) + self.max_tokens


@dataclass(slots=True, eq=False)
class _Scoring:
    """One request for the log-probabilities of given completions."""

    sequences: list[Tokens]
    adapter: Adapter | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[list[float]]]


_Result: TypeAlias = tuple[_Row | _Scoring, Completion | list[list[float]] | EngineError]


class TransformersEngine:
    """Generates with a transformers model on the CPU or one GPU.

    Implements :class:`~unstable_stream.inference.engine.Engine`.

    A request's samples depend on its prompt, adapter, settings and seed, not on its batch (up to the last
    bits of floating-point sums). Temperature 0 is greedy; its log-probabilities are those at temperature 1.
    """

    def __init__(
        self,
        model_path: str,
        *,
        max_parallel_seq: int = 256,
        max_model_len: int | None = None,
        max_loras: int = 8,
        max_batch_tokens: int = 4096,
        device: str | None = None,
        dtype: str = "auto",
        num_threads: int | None = None,
        kv_cache_bytes: int | None = None,
        gpu_memory_fraction: float | None = None,
    ) -> None:
        """Load the model and start the computing thread.

        Args:
            model_path: Directory saved by transformers, or a hub name.
            max_parallel_seq: Most requests decoded at once; more wait their turn.
            max_model_len: Most tokens of prompt and completion together; default: the model's own limit.
            max_loras: Most adapters in memory at once; the least recently used idle one makes room.
            max_batch_tokens: Most prompt tokens computed in one step (a longer prompt goes alone); bounds
                memory and how long running requests wait for new ones.
            device: ``cpu``, ``cuda``, ``cuda:1``; default: CUDA if there is one.
            dtype: ``float32``, ``bfloat16``, ``float16``; ``auto`` is float32 on CPU, bfloat16 on CUDA.
            num_threads: Threads for the computing thread's matrix products; default: torch's setting.
            kv_cache_bytes: Bound of the key/value store; requests wait when it is full.
            gpu_memory_fraction: The most of a GPU's memory that this process takes; default: no bound, and
                half of what is free after loading for the key/value store.

        Raises:
            ConfigError: The model cannot be loaded or has layers this engine cannot batch.
        """
        self._decoder = RowDecoder(
            model_path,
            device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
            dtype=dtype,
            max_loras=max_loras,
            max_rows=max_parallel_seq,
            store_bytes=kv_cache_bytes,
            memory_fraction=gpu_memory_fraction,
        )
        self._prover = AdapterProver(self._decoder.dtype)
        limits = [limit for limit in (max_model_len, self._decoder.max_positions) if limit is not None]
        if not limits:
            raise ConfigError(
                f"{model_path}: neither config.json nor tokenizer_config.json says how many tokens the model "
                "takes; set engine.max_model_len"
            )
        self.max_model_len: Final = min(limits)
        """Most tokens of prompt and completion together."""
        self._max_parallel_seq = max_parallel_seq
        self._max_batch_tokens = max_batch_tokens
        # Callers append to `_waiting` and `_scorings`; all else below belongs to the computing thread.
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: deque[_Row] = deque()
        self._scorings: deque[_Scoring] = deque()
        self._closing = False
        self._stopped: EngineError | None = None
        self._rows: list[_Row] = []
        self._throughput = Throughput()
        self._idle = IdleTime()
        self._thread = threading.Thread(
            target=self._work, args=(num_threads,), name="transformers-engine", daemon=True
        )
        self._thread.start()
        # A daemon thread inside torch while the interpreter is torn down can crash the process.
        atexit.register(self._stop)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Return one completion; see :meth:`~unstable_stream.inference.engine.Engine.generate`.

        Raises:
            EngineError: The prompt is empty, has ids beyond the vocabulary or fills the context; the settings
                are impossible; the adapter is missing or of the wrong shape; the engine was closed or has
                failed.
        """
        row = self._new_row(request)
        with self._running():
            self._waiting.append(row)
        # Not at once: callers that are ready in this same turn of the loop get into the same batch.
        row.loop.call_soon(self._wake.set)
        try:
            return await row.future
        except asyncio.CancelledError:
            row.cancelled = True
            raise

    async def score(self, sequences: Sequence[Tokens], adapter: Adapter | None = None) -> list[list[float]]:
        """Return the natural log-probability of each token of each completion, at temperature 1.

        The adapter is proven as before it plays. Raises as :meth:`generate` does.
        """
        found: list[list[float]] = []
        part: list[Tokens] = []
        tokens = 0
        for prompt, completion in sequences:
            if not prompt or not completion:
                raise EngineError(
                    "a prompt or completion to score is empty; expected at least 1 token of each"
                )
            if len(prompt) + len(completion) > self.max_model_len:
                raise EngineError(
                    f"a prompt and completion to score have {len(prompt) + len(completion)} tokens and the "
                    f"context {self.max_model_len} (max_model_len); shorten the prompt"
                )
            check_tokens([*prompt, *completion], self._decoder.vocabulary)
            tokens += len(prompt) + len(completion)
            if part and tokens > self._max_batch_tokens:
                found += await self._score(part, adapter)
                part, tokens = [], len(prompt) + len(completion)
            part.append((prompt, completion))
        return found + (await self._score(part, adapter) if part else [])

    async def _score(self, sequences: list[Tokens], adapter: Adapter | None) -> list[list[float]]:
        loop = asyncio.get_running_loop()
        scoring = _Scoring(sequences, adapter, loop, loop.create_future())
        with self._running():
            self._scorings.append(scoring)
        self._wake.set()
        return await scoring.future

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        with self._lock:
            if self._stopped is not None:
                raise type(self._stopped)(str(self._stopped))
            yield

    def stats(self) -> EngineStats:
        """Return a snapshot; may be called from any thread."""
        stats = self._throughput.stats(queued=len(self._waiting), running=len(self._rows))
        return replace(stats, idle_s=self._idle.seconds())

    def take_adapter_results(self) -> list[AdapterResult]:
        """Return what came of loading adapters since the last call."""
        return self._prover.take()

    async def close(self) -> None:
        """Stop after the present step. Running requests fail with ``EngineError``. May be called twice."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._closing = True
        self._wake.set()
        self._thread.join()
        atexit.unregister(self._stop)

    def _new_row(self, request: GenerationRequest) -> _Row:
        check_request(request, self.max_model_len, self._decoder.vocabulary)
        prompt = list(request.prompt_token_ids)
        loop = asyncio.get_running_loop()
        sampling = request.sampling
        return _Row(
            prompt=prompt,
            sampling=sampling,
            adapter=request.adapter,
            seed=(secrets.randbits(64) if request.seed is None else request.seed) % 2**64,
            max_tokens=min(sampling.max_tokens, self.max_model_len - len(prompt)),
            stops=self._decoder.eos_token_ids.union(sampling.stop_token_ids),
            loop=loop,
            future=loop.create_future(),
        )

    # -- the computing thread ---------------------------------------------------------------------

    def _work(self, num_threads: int | None) -> None:
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        reason = EngineError("the engine was closed")
        try:
            while not self._closing:
                with spending("engine"):
                    scored = self._score_next()
                    new = self._admit()
                    steps = bool(new or self._rows)
                    if steps:
                        self._step(new)
                if not (steps or scored):
                    self._idle.begin()
                    self._wake.wait()
                    self._wake.clear()
                    self._idle.end()
        except BaseException as error:
            # Whatever it was, callers must hear of it: a future nobody resolves is a game that hangs for
            # ever.
            reason = EngineDiedError(
                f"the engine failed and must be started anew: {type(error).__name__}: {error}"
            )
            raise
        finally:
            with self._lock:
                self._stopped = reason
                left: list[_Row | _Scoring] = [*self._rows, *self._waiting, *self._scorings]
                self._waiting.clear()
                self._scorings.clear()
            self._rows.clear()
            self._deliver((row, reason) for row in left)

    def _admit(self) -> list[_Row]:
        """Choose who joins at this step, first come first served."""
        new: list[_Row] = []
        refused: list[tuple[_Row, EngineError]] = []
        in_use = {row.adapter.uid for row in self._rows if row.adapter is not None}
        reach = max((row.reach for row in self._rows), default=0)
        prompt_tokens = 0
        while self._waiting:
            row = self._waiting[0]
            if row.cancelled:
                self._waiting.popleft()
                continue
            rows = len(self._rows) + len(new) + 1
            prompt_tokens += len(row.prompt)
            reach = max(reach, row.reach)
            if rows > self._max_parallel_seq or (new and prompt_tokens > self._max_batch_tokens):
                break
            if rows > 1 and not self._decoder.fits(rows, reach):
                break
            if row.adapter is not None:
                try:
                    if not self._make_ready(row.adapter, in_use):
                        break
                except EngineError as error:
                    refused.append((self._waiting.popleft(), error))
                    continue
                in_use.add(row.adapter.uid)
            new.append(self._waiting.popleft())
        self._deliver(refused)
        return new

    def _score_next(self) -> bool:
        """Score the next request; false if there is none, or its adapter waits for those in use."""
        if not self._scorings:
            return False
        scoring = self._scorings[0]
        result: list[list[float]] | EngineError
        try:
            in_use = {row.adapter.uid for row in self._rows if row.adapter is not None}
            if scoring.adapter is not None and not self._make_ready(scoring.adapter, in_use):
                return False
            uid = None if scoring.adapter is None else scoring.adapter.uid
            result = self._decoder.score(scoring.sequences, uid)
        except EngineError as error:
            result = error
        self._scorings.popleft()
        self._deliver([(scoring, result)])
        return True

    def _make_ready(self, adapter: Adapter, in_use: set[str]) -> bool:
        """Load an adapter if need be, and prove it then; see :meth:`AdapterTable.make_ready`."""
        adapters = self._decoder.adapters
        if adapter.uid in adapters.loaded():
            return adapters.make_ready(adapter, in_use)
        self._prover.check_file(adapter)
        if not adapters.make_ready(adapter, in_use):
            return False
        if adapter.probe is None:
            self._prover.without_probe(adapter)
            return True
        started = time.monotonic()
        found = self._decoder.score(probe_tokens(adapter.probe), adapter.uid)
        try:
            self._prover.judge(adapter, adapter.probe, found, time.monotonic() - started)
        except AdapterError:
            adapters.unload(adapter.uid)
            raise
        return True

    def _step(self, new: list[_Row]) -> None:
        """Decode one token for every row, new ones included, and send off those that are done."""
        tokens = [row.token_ids[-1] for row in self._rows]
        reach = max(row.reach for row in (*self._rows, *new))
        logits = self._decoder.step(
            tokens, [(row.prompt, None if row.adapter is None else row.adapter.uid) for row in new], reach
        )
        self._rows += new
        rows = self._rows
        chances = uniforms(
            np.array([row.seed for row in rows], dtype=np.uint64),
            np.array([len(row.token_ids) for row in rows], dtype=np.uint64),
        )
        drawn, logprobs = sample(
            logits,
            [row.sampling.temperature for row in rows],
            [row.sampling.top_p for row in rows],
            chances.tolist(),
        )
        gone: list[int] = []
        not_finite: list[int] = []
        results: list[tuple[_Row, Completion | EngineError]] = []
        for slot, (row, token, logprob) in enumerate(zip(rows, drawn, logprobs, strict=True)):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            if math.isnan(logprob):
                gone.append(slot)
                not_finite.append(slot)
                results.append((row, diverged(row.adapter)))
            elif row.cancelled:
                gone.append(slot)
            elif token in row.stops or len(row.token_ids) >= row.max_tokens:
                gone.append(slot)
                reason = "stop" if token in row.stops else "length"
                results.append((row, Completion(row.token_ids, row.logprobs, reason)))
        if gone:
            for source, target in self._decoder.drop(gone, not_finite):
                rows[target] = rows[source]
            del rows[len(rows) - len(gone) :]
        self._throughput.count(len(drawn), len(results) - len(not_finite))
        self._deliver(results)

    def _deliver(self, results: Iterable[_Result]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[_Result]] = {}
        for row, result in results:
            by_loop.setdefault(row.loop, []).append((row, result))
        for loop, batch in by_loop.items():
            # A loop that was closed meanwhile has no one left waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, batch)


def _resolve(batch: list[_Result]) -> None:
    for row, result in batch:
        future: asyncio.Future[Any] = row.future  # of what the result is
        if future.done():
            continue
        if isinstance(result, EngineError):
            future.set_exception(result)
        else:
            future.set_result(result)
