"""Whether the learner's GPU waits for its CPU: one micro-batch with PEFT's adapter layers and with ours."""

from collections.abc import Iterator
from functools import partial
from typing import Final
from unittest import mock

from torch import nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check.job import Job, Row, free, seconds_of
from benchmarks.gpu_check.learning import Learner, make_learner, samples_of, vocabulary_of
from unstable_stream.algorithms.learners.adapted_linear import fuse_adapters
from unstable_stream.algorithms.update_decisions import TrainingSample

_MICRO_BATCH: Final = 4096
"""Tokens; the most of a micro-batch on a GPU by default."""
_MS: Final = 1000.0


def _leave(model: nn.Module) -> None:
    """Leave PEFT's layers as they are."""


def measure_launches(job: Job) -> Iterator[Row]:
    """Yield one row for each kind of adapter layers.

    ``ms`` is an update of one micro-batch, ``busy_ms`` what the GPU computed in it. Where they are far apart,
    the GPU waited for kernels to be launched.
    """
    length = min(job.lengths)
    tokens = job.micro_batch_tokens or _MICRO_BATCH
    samples = samples_of(vocabulary_of(job.model), max(1, tokens // length), length)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if job.on_gpu else [])]
    for adapters in ("PEFT's", "fused"):
        fuse = fuse_adapters if adapters == "fused" else _leave
        with mock.patch("unstable_stream.algorithms.learners.lora.fuse_adapters", fuse):
            learner = make_learner(job, batch_size=len(samples))
        update = partial(_update, learner, samples)
        fastest = min(seconds_of(update, job.device) for _ in range(job.rounds + 1))
        with profile(activities=activities) as seen:
            seconds_of(update, job.device)
        events = [event for event in seen.key_averages() if event.device_type.name == "CUDA"]
        yield {
            "adapters": adapters,
            "length": length,
            "ms": round(fastest * _MS, 1),
            "busy_ms": round(sum(event.self_device_time_total for event in events) / _MS, 1),
            "kernels": sum(event.count for event in events),
        }
        del learner, update
        free()


def _update(learner: Learner, samples: list[TrainingSample]) -> None:
    learner.update(samples, learner.step + 1)
