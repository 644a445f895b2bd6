"""The ancestor's side: UnstableBaselines' ``REINFORCELearner``, its class without Ray's decorator.

Measured is ``_update``: tokenizing the steps' texts, as it does, forward and backward passes, clipping,
AdamW. Every token is one character of the text, so its tokenizer has little to do. Left out are its buffer,
tracker and checkpoints. Both kinds of checkpointing are off, as in its documentation's example. Ray's
``get`` returns what it is given, and packages that the learner's module imports on its way and never calls
(vLLM, TextArena, Weights & Biases, NVML) are empty modules.

It computes in bfloat16: weights, adapter and activations. That is slow on a CPU without instructions for it,
so with ``--dtype float32`` its model is made float32 and its autocast does nothing; all else stays.
"""

import contextlib
import itertools
import sys
import tempfile
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import peft
import ray
import safetensors.torch
import torch
from transformers import AutoModelForCausalLM

from benchmarks.peers.batch import RANK, Batch, text_of
from benchmarks.peers.measuring import (
    Clock,
    Peak,
    Task,
    gradients_of,
    read_task,
)

_PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_NOT_CALLED = ["vllm", "vllm.lora", "vllm.lora.request", "textarena", "wandb", "pynvml"]


def _remote(answer: object) -> SimpleNamespace:
    return SimpleNamespace(remote=lambda *_, **__: answer)


def _learner(task: Task, batch: Batch, work: str) -> Any:
    for name in _NOT_CALLED:
        sys.modules[name] = MagicMock(__version__="1.0")  # the collector asks for TextArena's
    from unstable.learners import REINFORCELearner

    actor: Any = REINFORCELearner
    plain_class = actor.__ray_metadata__.modified_class
    with patch.object(ray, "get", lambda given: given), patch.object(ray, "get_gpu_ids", list):
        learner = plain_class(
            model_name=str(task.directory / "model"),
            lora_cfg={
                "lora_rank": RANK,
                "lora_alpha": 2 * RANK,
                "lora_dropout": 0.0,
                "target_modules": _PROJECTIONS,
            },
            batch_size=len(batch),
            mini_batch_size=task.rows,
            learning_rate=1e-4,
            grad_clip=1e6,
            buffer=None,
            tracker=SimpleNamespace(get_log_dir=_remote(work), get_checkpoints_dir=_remote(work)),
            model_registry=None,
            activation_checkpointing=False,
            gradient_checkpointing=False,
        )
    learner.initialize_algorithm(max_train_len=None, max_generation_len=batch.longest_completion)
    # Its own `initial_lora_path` calls a function that the package lacks.
    adapter = safetensors.torch.load_file(task.directory / "adapter" / "adapter_model.safetensors")
    peft.set_peft_model_state_dict(learner.policy_model, adapter)
    if task.dtype == "float32":
        make_float32(learner)
    return learner


def make_float32(learner: Any) -> None:
    """Let a learner of the ancestor's compute in float32 (``Any``: its classes have no types)."""
    torch.set_default_dtype(torch.float32)
    learner.policy_model.float()
    # What was rounded to bfloat16 is taken anew: frequencies of positions, and weights that need more digits.
    exact = AutoModelForCausalLM.from_pretrained(learner.model_name, dtype=torch.float32)
    found = {**dict(exact.named_parameters()), **dict(exact.named_buffers())}
    model = learner.policy_model.get_base_model()
    with torch.no_grad():
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
            if (original := found.get(name.replace(".base_layer", ""))) is not None:  # not the adapter's
                tensor.copy_(original)


def _steps(batch: Batch) -> list[Any]:
    from unstable._types import Step

    return [
        Step(
            pid=0,
            obs=text_of(batch.sample(index)[0]),
            act=text_of(batch.sample(index)[1]),
            reward=float(batch.advantages[index]),
            env_id="",
            step_info={},
        )
        for index in range(len(batch))
    ]


def main() -> None:
    """Measure."""
    task = read_task()
    batch = Batch.load(task.directory / "batch.npz")
    with tempfile.TemporaryDirectory() as work:
        learner = _learner(task, batch, work)
        steps = _steps(batch)
        for index, step in enumerate(steps):
            if (
                learner.tokenizer(step.obs + step.act)["input_ids"]
                != np.concatenate(batch.sample(index)).tolist()
            ):
                raise SystemExit(f"the text of sample {index} has other tokens than the batch")
        no_autocast = patch.object(torch, "autocast", lambda **_: contextlib.nullcontext())
        with no_autocast if task.dtype == "float32" else contextlib.nullcontext():
            clock = Clock(Peak(), "unstable-rl", "torch", "transformers", "peft")
            learner._update(steps)
            if task.gradient is not None:
                np.savez(task.gradient, **gradients_of(learner.policy_model))
            for _ in range(task.updates):
                clock.start()
                learner._update(steps)
                clock.stop()


if __name__ == "__main__":
    main()
