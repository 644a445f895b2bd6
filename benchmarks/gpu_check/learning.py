"""The learner: trained tokens a second and peak memory, with and without recomputed activations."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch
import transformers

from benchmarks.gpu_check.foretold import Recompute, foretold_gib, model_flops_utilization
from benchmarks.gpu_check.job import (
    Job,
    Row,
    free,
    peak_gib,
    random_prompts,
    reset_peak,
    seconds_of,
)
from unstable_stream.algorithms import Reinforce
from unstable_stream.algorithms.learners.lora import LoraSettings
from unstable_stream.algorithms.learners.settings import LearnerSettings
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.update_decisions import TrainingSample
from unstable_stream.inference.engine import Adapter, Completion
from unstable_stream.inference.model_config import read_shape

Learner = StandardLearner

_RECOMPUTE: Final[tuple[Recompute, ...]] = ("none", "activation_checkpointing", "gradient_checkpointing")


def make_learner(
    job: Job, *, batch_size: int = 64, recompute: Recompute = "none", learning_rate: float = 1e-4
) -> Learner:
    """Return a learner of rank 32 on the job's device, with the defaults of a run for all else."""
    return StandardLearner(
        job.model,
        LearnerSettings(
            batch_size=batch_size,
            mini_batch_size=64,
            mini_batch_tokens=job.micro_batch_tokens,
            learning_rate=learning_rate,
            max_generation_len=job.max_tokens,
            lora_cfg=LoraSettings(lora_rank=32, lora_alpha=32),
            activation_checkpointing=recompute == "activation_checkpointing",
            gradient_checkpointing=recompute == "gradient_checkpointing",
        ),
        algorithm=Reinforce(),
        ckpt_root=Path(job.work) / "checkpoints" / job.shape,
        device=job.device,
    )


def vocabulary_of(model: str) -> int:
    """Return the number of tokens that the model knows."""
    return int(transformers.AutoConfig.from_pretrained(model).get_text_config().vocab_size)


def measure_learner(job: Job) -> Iterator[Row]:
    """Yield one row for each way to keep activations and each length; longer ones are left out when memory
    ends.
    """
    vocabulary = vocabulary_of(job.model)
    for recompute in _RECOMPUTE:
        learner: Learner | None = None
        for length in job.lengths:
            row: Row = {"recompute": recompute, "length": length}
            count = max(1, job.batch_tokens // length)
            samples = samples_of(vocabulary, count, length)
            reset_peak(job.device)
            try:
                learner = learner or make_learner(
                    job, batch_size=max(1, job.batch_tokens // min(job.lengths)), recompute=recompute
                )
                seconds = [_seconds(learner, samples, job.device) for _ in range(job.rounds + 1)][1:]
            except torch.OutOfMemoryError:
                learner = None
                free()
                yield row | {"skipped": f"out of memory with {count} samples of {length} tokens"}
                break
            median = float(np.median(seconds))
            trained = sum(len(sample.completion_token_ids) for sample in samples)
            yield row | {
                "samples": count,
                "tokens_per_s": round(count * length / median),
                "trained_tokens_per_s": round(trained / median),
                "seconds": [round(one, 3) for one in seconds],
                "mfu": model_flops_utilization(
                    read_shape(job.model), length, count * length, trained, median
                ),
                "peak_gib": round(peak_gib(job.device), 2),
                "foretold_gib": foretold_gib(job, length, recompute)["learner"],
            }
        learner = None
        free()


def trained_adapter(job: Job, learner: Learner) -> Adapter:
    """Make a few updates that plainly change the policy, and return their checkpoint."""
    samples = samples_of(vocabulary_of(job.model), 8, min(job.lengths))
    for _ in range(4):
        learner.update(samples, learner.step + 1)
    return Adapter(f"ckpt-{job.part}-{job.shape}", learner.save().path)


def ratios(
    learner: Learner, adapter: Adapter, prompts: Sequence[Sequence[int]], completions: Sequence[Completion]
) -> Row:
    """Compare the engine's log-probabilities with the learner's, token by token, at the adapter's weights."""
    learner.load(adapter.path)
    samples = [
        TrainingSample(
            f"sample-{number}",
            np.array(prompt, dtype=np.int32),
            np.array(completion.token_ids, dtype=np.int32),
            np.array(completion.logprobs, dtype=np.float32),
            advantage=1.0,
        )
        for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]
    metrics = learner.update(samples, learner.step + 1).metrics
    names = {"is_ratio_mean": "ratio_mean", "is_ratio_max": "ratio_max", "approx_kl": "kl"}
    return {ours: round(metrics[name], 6) for name, ours in names.items()}


def _seconds(learner: Learner, samples: list[TrainingSample], device: str) -> float:
    return seconds_of(lambda: learner.update(samples, learner.step + 1), device)


def samples_of(vocabulary: int, count: int, length: int) -> list[TrainingSample]:
    """Half of each is prompt, half completion."""
    half = length // 2
    rng = np.random.default_rng(1)
    behaviour = np.full(length - half, -np.log(vocabulary), dtype=np.float32)
    return [
        TrainingSample(f"sample-{number}", tokens[:half], tokens[half:], behaviour, float(rng.normal()))
        for number, tokens in enumerate(random_prompts(vocabulary, count, length))
    ]
