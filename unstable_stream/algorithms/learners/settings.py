"""The settings of training, the schedule of its learning rate, and the result of an update."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, Self

from unstable_stream.algorithms.learners.lora import LoraSettings

_CHANGEABLE: Final = (
    "mini_batch_size",
    "mini_batch_tokens",
    "learning_rate",
    "lr_schedule",
    "grad_clip",
    "weight_decay",
    "optimizer_steps_per_update",
    "max_generation_len",
    "num_threads",
)
"""A resume may change these; the others shape what is trained."""


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """The learning rate as a function of the update number, so that nothing must be saved for a resume.

    From the peak at update 1 to ``final_fraction`` of it at ``total``, on a line (``linear``) or along half a
    cosine (``cosine``: Loshchilov and Hutter, "SGDR", arXiv:1608.03983, eq. 5).
    """

    type: str = "linear"
    final_fraction: float = 1.0
    """The fraction of the peak learning rate that is reached at update ``total`` and kept after it."""
    total: int = 0
    """The number of updates of the run; needed unless the rate stays at its peak."""
    warmup: int = 0
    """The number of first updates over which the rate rises linearly to the schedule."""

    def factor(self, update: int) -> float:
        """Return the factor of the peak learning rate in ``update`` (counted from 1)."""
        progress = min(1.0, (update - 1) / max(1, self.total - 1))
        if self.type == "cosine":
            progress = (1.0 - math.cos(math.pi * progress)) / 2
        value = 1.0 - (1.0 - self.final_fraction) * progress
        if update < self.warmup:
            value *= update / self.warmup
        return value


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of an update, as the learner-update event holds it."""

    update: int
    loss: float
    """Mean over the update's optimizer steps, weighted by their samples."""
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerSettings:
    """The settings of training; the configuration of the run has checked them."""

    batch_size: int
    """The most samples of an update."""
    mini_batch_size: int
    """The most rows of a micro-batch. Rows of similar length share one; the gradient is still that of the
    whole batch."""
    mini_batch_tokens: int | None = None
    """The most tokens of a micro-batch, including padding; a longer row gets one of its own. ``None``: 4,096
    on a GPU and 1,024 on a CPU, which is as fast there and takes a quarter of the memory for activations."""
    learning_rate: float
    """The peak learning rate of AdamW."""
    lr_schedule: LrSchedule = field(default_factory=LrSchedule)
    grad_clip: float = 1.0
    """Upper bound of the gradient's global L2 norm in each optimizer step."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    optimizer_steps_per_update: int = 1
    """The batch is shuffled and split into this many optimizer steps."""
    parameters: Literal["lora", "all"] = "lora"
    """``lora``: of an adapter; ``all``: of the model, full fine-tuning."""
    lora_cfg: LoraSettings = field(default_factory=LoraSettings)
    initial_lora_path: Path | str | None = None
    """An adapter directory to start from."""
    max_train_len: int | None = None
    """The most tokens of a sample, prompt and completion together. The rest of the completion is cut off. A
    sample whose prompt fills it is dropped as ``truncated``. ``None``: no limit."""
    max_generation_len: int
    """The rollout's token limit, the normaliser of Dr. GRPO."""
    gradient_checkpointing: bool = False
    """Recompute activations with the model's own method."""
    activation_checkpointing: bool = False
    """Recompute every decoder layer and the logits; this works with every model."""
    seed: int = 0
    num_threads: int | None = None
    """PyTorch threads of this process; ``None``: do not change them."""

    def changed_to(self, others: Self) -> Self:
        """Return these settings with those of ``others`` that may change during a run."""
        return replace(self, **{name: getattr(others, name) for name in _CHANGEABLE})
