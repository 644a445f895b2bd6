"""TRL's side: ``GRPOTrainer`` on the recorded completions.

Its ``rollout_func`` returns the recorded prompts and completions, its reward function the recorded
advantages, as rewards of groups of two whose mean is zero. With ``loss_type="dr_grpo"``, no scaling of
rewards, ``beta=0`` and one iteration this is the policy gradient that our side computes.

Measured is an optimizer step: forward passes, loss, backward passes, the metrics that the loss computes,
clipping, AdamW, schedule. Left out is all that comes before the first forward pass: the data loader, the
rollout, the decoding of completions, rewards, advantages, padding and the split into micro-batches. Our own
side pays for its padding and packing. Logging, saving and progress bars are switched off, and so is gradient
checkpointing, which is on by default and would cost TRL another forward pass.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.peers.batch import Batch
from benchmarks.peers.measuring import (
    Clock,
    Peak,
    Task,
    gradients_of,
    read_task,
)


class _MeasuredTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL is installed in the peers' environment only
    """Leaves out of the clock what prepares a batch, which is more than training."""

    clock: Clock

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        with self.clock.paused():
            return super()._prepare_inputs(generation_batch)


class _Watch(TrainerCallback):  # type: ignore[misc]  # mypy skips Transformers, see pyproject.toml
    def __init__(self, clock: Clock, gradient: Path | None) -> None:
        self.clock = clock
        self.gradient = gradient

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.peak = Peak()  # what the trainer prepared until here is left out

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step > 0:  # the first is the warm-up
            self.clock.start()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step == 0 and self.gradient is not None:
            np.savez(self.gradient, **gradients_of(given["model"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.clock.stop()


def _rollout(batch: Batch, prompts: list[str]) -> Mapping[str, Any]:
    """Return the two samples of each prompt, which is the number of a pair."""
    seen: set[str] = set()
    numbers = []
    for prompt in prompts:
        numbers.append(2 * int(prompt) + (prompt in seen))
        seen.add(prompt)
    samples = [batch.sample(number) for number in numbers]
    return {
        "prompt_ids": [prompt.tolist() for prompt, _ in samples],
        "completion_ids": [completion.tolist() for _, completion in samples],
        "logprobs": None,
        "recorded_advantage": [float(batch.advantages[number]) for number in numbers],
    }


def _trainer(task: Task, batch: Batch, work: str) -> _MeasuredTrainer:
    model = AutoModelForCausalLM.from_pretrained(task.directory / "model", dtype=getattr(torch, task.dtype))
    policy = PeftModel.from_pretrained(model, task.directory / "adapter", is_trainable=True)
    tokenizer = AutoTokenizer.from_pretrained(task.directory / "model")

    def reward(recorded_advantage: list[float], **_: Any) -> list[float]:
        return recorded_advantage

    return _MeasuredTrainer(
        model=policy,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"prompt": [str(pair) for pair in range(len(batch) // 2)]}),
        reward_funcs=reward,
        rollout_func=lambda prompts, _: _rollout(batch, prompts),
        args=GRPOConfig(
            output_dir=work,
            use_cpu=True,
            bf16=task.dtype == "bfloat16",
            per_device_train_batch_size=task.rows,
            gradient_accumulation_steps=len(batch) // task.rows,
            num_generations=2,
            max_steps=task.updates + 1,
            max_completion_length=batch.longest_completion,
            loss_type="dr_grpo",
            scale_rewards="none",
            beta=0.0,
            temperature=1.0,
            learning_rate=1e-4,
            lr_scheduler_type="constant",
            max_grad_norm=1e6,
            gradient_checkpointing=False,
            dataloader_pin_memory=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
    )


def main() -> None:
    """Measure."""
    task = read_task()
    batch = Batch.load(task.directory / "batch.npz")
    with tempfile.TemporaryDirectory() as work:
        trainer = _trainer(task, batch, work)
        trainer.clock = Clock(Peak(), "trl", "torch", "transformers", "peft")
        trainer.add_callback(_Watch(trainer.clock, task.gradient))
        trainer.train()


if __name__ == "__main__":
    main()
