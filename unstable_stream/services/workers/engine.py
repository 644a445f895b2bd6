"""The inference engine of a run, and the interface that a collector needs of one in any process."""

from typing import Final, Protocol

from unstable_stream.extensions import KINDS, build
from unstable_stream.inference.base_model import resolve_model
from unstable_stream.inference.cores import available_cores, fastest_on_cpu
from unstable_stream.inference.engine import AdapterResult, Engine, EngineStats, ProvesAdapters
from unstable_stream.inference.fetched_adapters import FetchingEngine
from unstable_stream.runs.config import EngineExtensionConfig, RunConfig, VllmEngineConfig
from unstable_stream.runs.placement import Share

_DECODED_ROWS: Final = 32
"""Tokens of one decoding step, about."""


class EngineHandle(Protocol):
    """An engine that may be in another process."""

    async def stats(self) -> EngineStats:
        """Return the engine's counters when it has loaded its model.

        Raises:
            ServiceError: the engine did not start, or died.
        """

    async def adapter_results(self) -> list[AdapterResult]:
        """Return what came of the adapters that it has loaded since the last call.

        Raises:
            ServiceError: the engine did not start, or died.
        """


class LocalEngine:
    """The handle of an engine in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def stats(self) -> EngineStats:
        """Return its counters."""
        return self._engine.stats()

    async def adapter_results(self) -> list[AdapterResult]:
        """Return what came of the adapters that it has loaded since the last call."""
        return take_adapter_results(self._engine)


def take_adapter_results(engine: Engine) -> list[AdapterResult]:
    """Return what came of the adapters that an engine has loaded since the last call."""
    return engine.take_adapter_results() if isinstance(engine, ProvesAdapters) else []


def build_engine(config: RunConfig, model_path: str, share: Share) -> FetchingEngine:
    """Construct the configured engine in this process, on its share of the GPUs, and load the model."""
    return FetchingEngine(_build(config, model_path, share))


def _build(config: RunConfig, model_path: str, share: Share) -> Engine:
    engine = config.engine
    if isinstance(engine, VllmEngineConfig):
        from unstable_stream.inference.vllm.engine import VllmEngine

        return VllmEngine(
            model_path,
            max_parallel_seq=engine.max_parallel_seq,
            max_model_len=engine.max_model_len,
            max_loras=engine.max_loras,
            lora_rank=config.lora.lora_rank,
            gpu_memory_utilization=share.memory_fraction or engine.gpu_memory_utilization,
            kv_cache_gb=engine.kv_cache_gb or share.kv_cache_gb,
            tensor_parallel_size=engine.tensor_parallel_size,
            num_threads=engine.num_threads or _cores_left(config),
            dtype=_dtype(config, model_path, share, _cores_left(config)),
            extra_engine_args=engine.extra_engine_args,
        )
    if isinstance(engine, EngineExtensionConfig):
        made: Engine = build(KINDS["engine"], engine.spec, given=(model_path,), calls_functions=True)
        return made
    from unstable_stream.inference.transformers.engine import TransformersEngine

    return TransformersEngine(
        model_path,
        max_parallel_seq=engine.max_parallel_seq,
        max_model_len=engine.max_model_len,
        max_loras=engine.max_loras,
        num_threads=engine.num_threads or available_cores(),
        device=None if share.num_gpus else "cpu",
        dtype=_dtype(config, model_path, share, available_cores()),
        gpu_memory_fraction=share.memory_fraction,
    )


def build_opponent(config: RunConfig, path: str, share: Share) -> Engine:
    """Construct the engine of another model that is an opponent, and load the model."""
    from unstable_stream.inference.transformers.engine import TransformersEngine

    return TransformersEngine(
        resolve_model(path, revision=config.model_revisions.get(path)),
        max_loras=1,
        num_threads=getattr(config.engine, "num_threads", None) or 1,
        device=None if share.num_gpus else "cpu",
        gpu_memory_fraction=share.memory_fraction,
    )


def _dtype(config: RunConfig, model_path: str, share: Share, num_threads: int) -> str:
    engine = config.engine
    assert not isinstance(engine, EngineExtensionConfig)
    if engine.dtype != "auto" or share.num_gpus > 0:
        return engine.dtype
    # Not left to vLLM: its own choice on a CPU is bfloat16 for every float32 model.
    return fastest_on_cpu(
        share.service, model_path, rows=_DECODED_ROWS, num_threads=engine.num_threads or num_threads
    )


def _cores_left(config: RunConfig) -> int:
    """Return each engine's share of this machine's cores without those of the learner, at least 1."""
    cores = available_cores() - (config.learner.num_threads or 1)
    return max(1, cores // config.collector.fewest_engines)
