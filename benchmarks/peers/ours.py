"""Our side: :meth:`StandardLearner.update` with ``Reinforce``, from samples to the optimizer step.

The importance ratio is switched off, because neither peer has one in this setting.
"""

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.peers.batch import RANK, Batch
from benchmarks.peers.measuring import Clock, Peak, gradients_of, read_task
from unstable_stream.algorithms import Reinforce, TrainingSample
from unstable_stream.algorithms.learners.lora import LoraSettings
from unstable_stream.algorithms.learners.settings import LearnerSettings
from unstable_stream.algorithms.learners.standard_learner import StandardLearner


def samples_of(batch: Batch) -> list[TrainingSample]:
    """Return the batch as our learner takes it."""
    samples = []
    for index in range(len(batch)):
        prompt, completion = batch.sample(index)
        unused = np.zeros(len(completion), dtype=np.float32)
        samples.append(TrainingSample(str(index), prompt, completion, unused, float(batch.advantages[index])))
    return samples


def main() -> None:
    """Measure."""
    task = read_task()
    batch = Batch.load(task.directory / "batch.npz")
    samples = samples_of(batch)
    with tempfile.TemporaryDirectory() as checkpoints:
        learner = StandardLearner(
            str(task.directory / "model"),
            LearnerSettings(
                batch_size=len(batch),
                mini_batch_size=task.rows,
                learning_rate=1e-4,
                grad_clip=1e6,
                max_generation_len=batch.longest_completion,
                lora_cfg=LoraSettings(lora_rank=RANK, lora_alpha=2 * RANK),
                initial_lora_path=task.directory / "adapter",
            ),
            algorithm=Reinforce(is_clip=None),
            ckpt_root=Path(checkpoints),
            device="cpu",
            dtype=task.dtype,
        )
        clock = Clock(Peak(), "torch", "transformers", "peft")
        learner.update(samples, 1)
        if task.gradient is not None:
            np.savez(task.gradient, **gradients_of(learner.policy.model))
        for number in range(2, task.updates + 2):
            clock.start()
            learner.update(samples, number)
            clock.stop()


if __name__ == "__main__":
    main()
