"""The learning rate is a function of the update number. So nothing must be saved for a resume."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unstable_stream.errors import LearnerError

__all__ = ["LrSchedule"]


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """``constant``; or from the peak at update 1 to ``final_fraction`` of it at ``total``, on a line
    (``linear``) or along half a cosine (``cosine``: Loshchilov and Hutter, "SGDR", arXiv:1608.03983, eq. 5).
    """

    type: str = "constant"
    final_fraction: float = 0.0
    """The fraction of the peak learning rate that is reached at update ``total`` and kept after it."""
    total: int = 0
    """The number of updates of the run; ``linear`` and ``cosine`` need it."""
    warmup: int = 0
    """The number of first updates over which the rate rises linearly to the schedule."""

    def __post_init__(self) -> None:
        if self.type not in ("constant", "linear", "cosine"):
            raise LearnerError(
                f"lr_schedule type is {self.type!r}; expected 'constant', 'linear' or 'cosine'"
            )
        if self.type != "constant" and self.total < 1:
            raise LearnerError(f"a {self.type} lr_schedule needs `total`: the number of updates of the run")
        if not 0.0 <= self.final_fraction <= 1.0 or self.warmup < 0:
            raise LearnerError(
                f"lr_schedule has final_fraction {self.final_fraction} and warmup {self.warmup}; "
                "expected a fraction in [0, 1] and no negative warm-up"
            )

    @classmethod
    def from_settings(cls, settings: "Mapping[str, Any] | LrSchedule | None") -> "LrSchedule":
        """Read a mapping such as ``{"type": "linear", "final_fraction": 0.05, "total": 110}``."""
        if isinstance(settings, LrSchedule):
            return settings
        try:
            return cls(**(settings or {}))
        except TypeError as error:
            raise LearnerError(
                f"lr_schedule is {settings!r}; expected the keys type, final_fraction, total, warmup"
            ) from error

    def factor(self, update: int) -> float:
        """Return the factor of the peak learning rate in ``update`` (counted from 1)."""
        value = 1.0
        if self.type != "constant":
            progress = min(1.0, (update - 1) / max(1, self.total - 1))
            if self.type == "cosine":
                progress = (1.0 - math.cos(math.pi * progress)) / 2
            value = 1.0 - (1.0 - self.final_fraction) * progress
        if update < self.warmup:
            value *= update / self.warmup
        return value
