"""What a run's plan foretells of a GPU's memory, and how much of the GPU's arithmetic an update used."""

from typing import Final, Literal, TypeAlias

import torch

from benchmarks.gpu_check.job import GIB, Job
from unstable_stream.inference.model_config import ModelShape, read_shape
from unstable_stream.runs.config import parse_config
from unstable_stream.runs.placement import Machine, place
from unstable_stream.services.launch.memory import Need, foretell

Recompute: TypeAlias = Literal["none", "activation_checkpointing", "gradient_checkpointing"]

_PEAK_TFLOPS: Final = {"A100": 312, "H100 PCIe": 756, "H100": 989, "H200": 989}
"""Dense bfloat16 products by NVIDIA's data sheets; the first name that the card's contains counts."""


def foretold_gib(job: Job, length: int, recompute: Recompute = "none") -> dict[str, float]:
    """Return by process (``learner``, ``engine 0``) the peak in GiB that a plan gives ``length`` tokens.

    Without what no tensor takes on a GPU, since :func:`~benchmarks.gpu_check.job.peak_gib` does not see it.
    """
    config = parse_config(
        {
            "model": job.model,
            "backend": "inline",
            "train_envs": [{"env_id": "TicTacToe-v0-train"}],
            "learner": {
                "mini_batch_size": 64,
                "mini_batch_tokens": job.micro_batch_tokens,
                "max_train_len": length,
                "activation_checkpointing": recompute == "activation_checkpointing",
                "gradient_checkpointing": recompute == "gradient_checkpointing",
            },
            "lora": {"lora_rank": 32},
            "engine": {"type": "transformers", "max_model_len": length, "max_loras": 1},
            "collector": {"num_workers": job.requests_of(length), "num_eval_workers": 0},
            "sampling": {"max_tokens": job.completion_tokens(length)},
        }
    )
    machine = Machine(gpus=1, gpu_bytes=_gpu_bytes()) if job.on_gpu else Machine()
    needs = foretell(config, read_shape(job.model), place(config, [machine]))
    return {need.process: round(_of_tensors(need) / GIB, 2) for need in needs}


def model_flops_utilization(
    shape: ModelShape, length: int, tokens: int, trained: int, seconds: float
) -> float | None:
    """Return the share of the GPU's peak that an update of an adapter used (MFU); ``None``: a peak not known.

    As PaLM counts (arXiv:2204.02311, appendix B): two operations a weight forward, and for gradients only
    those to the inputs, since the base model is frozen: two again. The output head sees trained tokens alone.
    Attention is causal. Neither the adapter nor what is computed a second time counts.
    """
    peak = _peak_flops()
    if peak is None:
        return None
    head = shape.vocabulary * shape.hidden
    body = shape.parameters - (1 if shape.tied else 2) * head
    attention = shape.layers * 2 * length * shape.heads * shape.head_size  # half of 4 x length: it is causal
    operations = 4 * body * tokens + 4 * head * trained + 3 * attention * tokens
    return round(operations / seconds / peak, 3)


def _of_tensors(need: Need) -> int:
    return need.peak - (need.parts["libraries"] if need.where == "GPU" else 0)


def _gpu_bytes() -> int:
    return torch.cuda.mem_get_info()[1]


def _peak_flops() -> float | None:
    if not torch.cuda.is_available():
        return None
    card = torch.cuda.get_device_name()
    return next((tflops * 1e12 for name, tflops in _PEAK_TFLOPS.items() if name in card), None)
