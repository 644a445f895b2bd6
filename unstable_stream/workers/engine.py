"""The inference engine of a run, and the interface that a collector needs of one in any process."""

from typing import Protocol

from unstable_stream.extensions import KINDS, build
from unstable_stream.inference.cores import available_cores
from unstable_stream.inference.engine import Engine, EngineStats
from unstable_stream.runs.config import EngineExtensionConfig, RunConfig, VllmEngineConfig
from unstable_stream.runs.placement import Share

__all__ = ["EngineHandle", "LocalEngine", "build_engine"]


class EngineHandle(Protocol):
    """An engine that may be in another process."""

    async def stats(self) -> EngineStats:
        """Return the engine's counters when it has loaded its model.

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


def build_engine(config: RunConfig, model_path: str, share: Share) -> Engine:
    """Construct the configured engine in this process, on its share of the GPUs, and load the model."""
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
        gpu_memory_fraction=share.memory_fraction,
    )


def _cores_left(config: RunConfig) -> int:
    """Return each engine's share of this machine's cores without those of the learner, at least 1."""
    cores = available_cores() - (config.learner.num_threads or 1)
    return max(1, cores // config.collector.num_actors)
