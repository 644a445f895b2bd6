"""Build the training core of a run from its configuration, and compute with it beside the event loop."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from unstable_stream.algorithms import BaseAlgo, build_algorithm
from unstable_stream.algorithms.learners.lora import LoraSettings
from unstable_stream.algorithms.learners.rank import Rank
from unstable_stream.algorithms.learners.settings import LearnerSettings, LrSchedule
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.settings import BuiltInAlgorithmConfig
from unstable_stream.inference.cores import available_cores
from unstable_stream.log.stores import opened_checkpoint
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.placement import Share
from unstable_stream.services.workers.checkpoint_home import CheckpointHome
from unstable_stream.services.workers.dtype import fastest_on_cpu, kept

_T = TypeVar("_T")

_TRAINED_ROWS: Final = 256
"""Tokens to measure the number format with: enough to be bound by arithmetic, as micro-batches are."""


def build_learner(
    config: RunConfig,
    algorithm: BaseAlgo,
    checkpoints: Path,
    model_path: str,
    share: Share | None,
    *,
    dtype: str | None,
    rank: Rank | None = None,
    kind: Callable[..., StandardLearner] | None = None,
) -> StandardLearner:
    """Load the model onto the learner's ``share`` of the GPUs; ``None``: a GPU of its own, if any.

    ``dtype`` is what :func:`learner_dtype` found; ``rank``: the place among several learners,
    and ``kind`` the class of this one.
    """
    with ExitStack() as opened:
        begun = config.learner.initial_lora_path
        settings = learner_settings(config)
        if begun is not None:
            path = str(opened.enter_context(opened_checkpoint(begun)))
            settings = replace(settings, initial_lora_path=path)
        return (kind or StandardLearner)(
            model_path,
            settings,
            algorithm=algorithm,
            ckpt_root=checkpoints.absolute(),
            device=None if share is None or share.num_gpus else "cpu",
            dtype=dtype,
            rank=rank,
            gpu_memory_fraction=None if share is None else share.memory_fraction,
        )


def learner_settings(config: RunConfig) -> LearnerSettings:
    """Return the settings of training, without an adapter to begin with; a resume may change them."""
    settings = config.learner
    return LearnerSettings(
        batch_size=settings.batch_size,
        max_train_len=settings.max_train_len,
        parameters=settings.parameters,
        lora_cfg=LoraSettings(**config.lora.model_dump()),
        gradient_checkpointing=settings.gradient_checkpointing,
        activation_checkpointing=settings.activation_checkpointing,
        seed=config.seed,
        learning_rate=settings.learning_rate,
        lr_schedule=LrSchedule(
            type=settings.lr_schedule if settings.lr_final_fraction < 1 else "constant",
            final_fraction=settings.lr_final_fraction,
            warmup=settings.lr_warmup_updates,
            total=settings.iterations,
        ),
        grad_clip=settings.grad_clip,
        weight_decay=settings.weight_decay,
        optimizer_steps_per_update=settings.optimizer_steps,
        mini_batch_size=settings.mini_batch_size,
        mini_batch_tokens=settings.mini_batch_tokens,
        max_generation_len=config.sampling.max_tokens,
        num_threads=settings.num_threads or max(1, available_cores() // settings.num_learners),
    )


def build_training_algorithm(config: RunConfig) -> BaseAlgo:
    """Return the algorithm of a run."""
    settings = config.algorithm
    if isinstance(settings, BuiltInAlgorithmConfig):
        return build_algorithm(settings.arguments(config.learner.iterations))
    return build_algorithm(settings.spec)


def learner_dtype(
    config: RunConfig, home: CheckpointHome, model_path: str, share: Share | None
) -> str | None:
    """Return the number format that the run's learners compute in; ``None``: their default for the device."""
    settings = config.learner
    if settings.dtype != "auto":
        return settings.dtype
    if share is None or share.num_gpus > 0:
        return None  # the learner's own default for the device
    return kept(
        home,
        lambda: fastest_on_cpu(
            "learner",
            model_path,
            rows=_TRAINED_ROWS,
            num_threads=settings.num_threads or available_cores(),
            backward=True,
        ),
    )


async def computed(work: Callable[..., _T], *arguments: Any, **named: Any) -> _T:
    """Compute in a thread; a cancellation is raised when it has ended.

    Until then it uses PyTorch's random generators, which belong to whoever computes in this process next.
    """
    computing = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(computing)
    except asyncio.CancelledError:
        while not computing.done():
            with suppress(asyncio.CancelledError):  # a second one changes nothing: the first is raised below
                await asyncio.wait([computing])
        computing.exception()  # retrieved: the cancellation stands for it
        raise


def now_ms() -> int:
    """Return the time as events record it, Unix milliseconds."""
    return time.time_ns() // 1_000_000
