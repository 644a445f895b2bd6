"""Foretell the memory of each process of a run from configuration, model and placement.

``at_start`` is what it has taken when the model is loaded, and a learner of all parameters when it has made
its first update. ``peak`` is the most it takes with the longest
turns that the configuration allows: a run of short turns takes less. What libraries take was measured;
``docs/explanation/memory.md`` compares all of it with measured peaks.

Of a layer the backward pass keeps, for each token: the residual stream twice and both normalised inputs
(4 x hidden), queries before and after rotation, repeated keys and values, attention's output (5 x heads x
head size), and in the feed-forward part four times its width. The adapter adds its rank per projection.
Layers before the first with an adapter keep nothing.
"""

from dataclasses import dataclass, replace
from typing import Final

from unstable_stream.inference.model_config import ModelShape
from unstable_stream.runs.config import RunConfig, TransformersEngineConfig, VllmEngineConfig
from unstable_stream.runs.placement import Placement, Share, engine_count

MIB: Final = 2**20
GIB: Final = 2**30

_LEARNER_LIBRARIES: Final = 725 * MIB
_ENGINE_LIBRARIES: Final = 725 * MIB
_VLLM_LIBRARIES: Final = 2050 * MIB
"""vLLM's two processes on a CPU, without model and cache."""
_RAY_ACTOR: Final = 80 * MIB
_CUDA_CONTEXT: Final = 600 * MIB
_ROLLOUT: Final = 350 * MIB
_OTHERS: Final = 1200 * MIB
"""Launcher, collector, processors, archiver, the learner's host, and Ray's own processes."""
_MICRO_BATCH_TOKENS: Final = 1024
_GPU_MICRO_BATCH_TOKENS: Final = 4096
_PREFILL_TOKENS: Final = 4096
_VLLM_PREFILL_TOKENS: Final = 2048
_LOGIT_CHUNK: Final = 2**24
_GPU_LOGIT_CHUNK: Final = 2**26
_STORE: Final = 4 * GIB
"""On a CPU. Bounds of the learner's micro-batches and of the engines; the same numbers as there."""
_FRAGMENTATION: Final = 1.85
_ADAPTER_FRAGMENTATION: Final = 1.35
"""On a CPU the allocator of glibc keeps freed activations in pieces that later ones do not fit into; fewer
where a learner trains an adapter.
"""
_RECOMPUTED: Final = 0.45
"""For the same reason recomputing activations leaves so much of them on a CPU."""


@dataclass(frozen=True, slots=True)
class Need:
    """The memory of one process."""

    process: str
    where: str
    """``host`` or ``GPU``."""
    at_start: int
    """Bytes that it takes whatever the turns."""
    peak: int
    """The most bytes it takes."""
    parts: dict[str, int]
    """The peak by what takes it."""


def foretell(config: RunConfig, shape: ModelShape, placement: Placement) -> list[Need]:
    """Return the memory of every process that the run starts."""
    first = _learner(config, shape, placement.learner)
    ranks = config.learner.num_learners
    needs = [first, *(replace(first, process=f"learner {number}") for number in range(1, ranks))]
    needs += [_engine(config, shape, placement, share) for share in placement.engines]
    if config.backend == "inline":
        return needs
    for number in range(config.collector.num_rollout_workers):
        needs.append(_need(f"rollout {number}", "host", {"libraries": _ROLLOUT}))
    needs.append(_need("all others", "host", {"libraries": _OTHERS}))
    return needs


def learner_gpu_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return the learner's peak on a GPU."""
    return _learner(config, shape, Share("learner", num_gpus=1.0)).peak


def longest_turn(config: RunConfig, shape: ModelShape) -> int:
    """Return the most tokens of prompt and completion together."""
    return min(config.engine.max_model_len or shape.max_positions, shape.max_positions)


def _learner(config: RunConfig, shape: ModelShape, share: Share) -> Need:
    settings = config.learner
    on_gpu = share.num_gpus > 0
    lower = settings.dtype == "bfloat16" or (on_gpu and settings.dtype == "auto")
    value = 2 if lower else 4
    whole = settings.parameters == "all"
    bound = settings.mini_batch_tokens or (_GPU_MICRO_BATCH_TOKENS if on_gpu else _MICRO_BATCH_TOKENS)
    row = min(settings.max_train_len or shape.max_positions, longest_turn(config, shape))
    tokens = max(row, min(bound, settings.mini_batch_size * row))
    scored = min(tokens, settings.mini_batch_size * min(config.sampling.max_tokens, row))
    models = len(config.model_names)
    trained_layers = shape.layers if whole else _adapted_layers(config, shape)
    # In bfloat16 the normalisations keep float32 copies.
    layer = tokens * (2.4 if value == 2 else value) * _kept_per_token(config, shape)
    if settings.gradient_checkpointing or settings.activation_checkpointing:
        activations = layer + trained_layers * tokens * shape.hidden * value
        if not on_gpu:
            activations = max(activations, trained_layers * layer * _RECOMPUTED)
    else:
        activations = trained_layers * layer
    fragmentation = _FRAGMENTATION if whole else _ADAPTER_FRAGMENTATION
    pulled = bool(getattr(config.algorithm, "kl_coef", 0))
    # Values of the reference's weights, where it is not the base model.
    kept = 4 if pulled and getattr(config.algorithm, "reference", "base") != "base" else 0
    # Logits, their logarithm, its exponential and a gradient, of one chunk; with a reference that again.
    chunk = _GPU_LOGIT_CHUNK if on_gpu else _LOGIT_CHUNK
    logits = 4 * (8 if pulled else 4) * min(scored * shape.vocabulary, max(chunk, shape.vocabulary))
    if whole:
        # All float32 for every number format, which says only what activations are; autocast keeps a copy.
        trained = {
            "weights": 4 * shape.parameters * models,
            "gradients and optimizer": (12 + kept) * shape.parameters * models,
            "weights in bfloat16": 2 * shape.parameters if lower else 0,
        }
    else:
        # Several trained models share one base model. Of an adapter: values, gradients and two moments.
        adapter = _adapter_parameters(config, shape, trained_layers)
        trained = {
            "weights": value * shape.parameters,
            "adapter and optimizer": (16 + kept) * adapter * models,
        }
    parts = {
        "libraries": _CUDA_CONTEXT if on_gpu else _LEARNER_LIBRARIES + _actor(config),
        **trained,
        "activations": int(activations * (1.0 if on_gpu else fragmentation)),
        "logits": logits,
    }
    loading = 0 if on_gpu else shape.stored_bytes
    if models > 1 and not whole:
        loading += value * shape.parameters
    # The optimizer of an adapter is small.
    always = ("libraries", "weights", "gradients and optimizer", "weights in bfloat16")
    return _need("learner", "GPU" if on_gpu else "host", parts, always, loading)


def _kept_per_token(config: RunConfig, shape: ModelShape) -> int:
    attention = 5 * shape.heads * shape.head_size
    adapters = len(config.lora.target_modules) * config.lora.lora_rank
    if config.learner.parameters == "all":
        adapters = 0
    return 4 * shape.hidden + attention + 4 * shape.intermediate + adapters


def _adapted_layers(config: RunConfig, shape: ModelShape) -> int:
    return min(config.lora.last_layers or shape.layers, shape.layers)


def _adapter_parameters(config: RunConfig, shape: ModelShape, layers: int) -> int:
    features = (shape.linear_features(module) for module in config.lora.target_modules)
    return layers * sum(config.lora.lora_rank * sum(pair) for pair in features if pair is not None)


def _engine(config: RunConfig, shape: ModelShape, placement: Placement, share: Share) -> Need:
    engine = config.engine
    if isinstance(engine, VllmEngineConfig):
        return _vllm(config, shape, placement, share)
    if not isinstance(engine, TransformersEngineConfig):
        return _need(share.service, "GPU" if share.num_gpus else "host", {"not known": 0})
    on_gpu = share.num_gpus > 0
    value = 2 if on_gpu or engine.dtype == "bfloat16" else 4
    in_flight = config.collector.num_workers + config.collector.num_eval_workers
    rows = min(engine.max_parallel_seq, -(-in_flight // engine_count(config)))
    longest = longest_turn(config, shape)
    wanted = rows * longest * shape.token_values * value
    # A longer prompt is computed alone.
    prefill = max(longest, min(_PREFILL_TOKENS, rows * longest))
    if config.learner.parameters == "all":
        # Each stands whole beside the base model, with embedding and output head apart even where they are
        # tied. Its file is float32, and in memory while it is read.
        head = shape.vocabulary * shape.hidden if shape.tied else 0
        loaded = {
            "whole models": engine.max_loras * value * (shape.parameters + head),
            "file of a whole model": 0 if on_gpu else 4 * shape.parameters,
        }
    else:
        adapter = _adapter_parameters(config, shape, _adapted_layers(config, shape))
        loaded = {"adapters": engine.max_loras * value * adapter}
    parts = {
        "libraries": _CUDA_CONTEXT if on_gpu else _ENGINE_LIBRARIES + _actor(config),
        "weights": value * shape.parameters,
        **loaded,
        "key-value cache": _store(wanted, value * shape.parameters, placement, share),
        "activations": _step(shape, prefill, rows, value, on_gpu=on_gpu),
    }
    loading = 0 if on_gpu else _file_beside(shape, value)
    return _need(share.service, "GPU" if on_gpu else "host", parts, ("libraries", "weights"), loading)


def _store(wanted: int, weights: int, placement: Placement, share: Share) -> int:
    """Return the most that the keys and values of an engine take, of what the longest turns want.

    On a GPU the engine takes half of what its share leaves beside the weights. While the store grows to twice
    its rows there, the old one stands beside the new.
    """
    if share.num_gpus == 0:
        return min(_STORE, wanted)
    total = placement.machines[share.machine].gpu_bytes
    if total is not None:
        left = int((share.memory_fraction or 1.0) * total) - _CUDA_CONTEXT - weights
        wanted = min(wanted, max(0, left) // 2)
    return wanted * 3 // 2


def _step(shape: ModelShape, tokens: int, rows: int, value: int, *, on_gpu: bool) -> int:
    """Return what one step of an engine computes with: these tokens, and the logits of these rows."""
    layer = tokens * value * (4 * shape.hidden + 3 * shape.intermediate)
    # In float32 and, while a token is drawn, in float64.
    logits = rows * shape.vocabulary * 24
    return int((layer + logits) * (1.0 if on_gpu else _FRAGMENTATION))


def _file_beside(shape: ModelShape, value: int) -> int:
    """Return the pages of the file that are in memory beside the weights while these are made of them.

    Weights that are computed with as they were saved are those pages.
    """
    return 0 if shape.stored_bytes == value * shape.parameters else shape.stored_bytes


def _vllm(config: RunConfig, shape: ModelShape, placement: Placement, share: Share) -> Need:
    engine = config.engine
    assert isinstance(engine, VllmEngineConfig)
    on_gpu = share.num_gpus > 0
    # Without a GPU what is measured faster, float32 at most.
    lower = engine.dtype in ("bfloat16", "float16") or (on_gpu and engine.dtype == "auto")
    value = 2 if lower else 4
    # It keeps room for adapters of all layers.
    adapter = value * _adapter_parameters(config, shape, shape.layers)
    adapters = (engine.max_loras + 1) * adapter
    # A quantized model stays as it was saved.
    weights = value * shape.parameters
    if shape.stored_bytes < 2 * shape.parameters:
        weights = min(weights, shape.stored_bytes)
    weights //= engine.tensor_parallel_size
    if not on_gpu:
        tokens = engine.extra_engine_args.get("max_num_batched_tokens", _VLLM_PREFILL_TOKENS)
        parts = {
            "libraries": _VLLM_LIBRARIES + _actor(config),
            "weights": weights,
            # Room for each, and those that are loaded beside it.
            "adapters": adapters + engine.max_loras * adapter,
            "key-value cache": int((engine.kv_cache_gb or 1.0) * GIB),
            # Once when it starts, for the largest batch.
            "activations": _step(shape, tokens, engine.max_parallel_seq, value, on_gpu=False),
        }
        return _need(share.service, "host", parts, tuple(parts))
    total = placement.machines[share.machine].gpu_bytes
    taken = int((share.memory_fraction or 0.0) * total) if total else 0
    fixed = {"libraries": _CUDA_CONTEXT, "weights": weights, "adapters": adapters}
    parts = fixed | {"activations and key-value cache": max(0, taken - sum(fixed.values()))}
    return _need(share.service, "GPU", parts, tuple(fixed))


def _actor(config: RunConfig) -> int:
    return _RAY_ACTOR if config.backend == "ray" else 0


def _need(
    process: str, where: str, parts: dict[str, int], at_start: tuple[str, ...] = (), loading: int = 0
) -> Need:
    """``loading``: the file's pages that are in memory besides while weights are converted."""
    start = sum(size for name, size in parts.items() if name in (at_start or parts))
    return Need(process, where, start, max(sum(parts.values()), start + loading), parts)
