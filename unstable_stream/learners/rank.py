"""One learner among several that train on the same batch: data parallelism.

Every rank has the whole model, gets the whole batch and makes the same decisions. Of each optimizer step's
micro-batches it computes a part; the gradients are added up over the ranks, and all take the same step. So
the weights stay equal without ever being sent, and they are those of a single learner but for the order of
sums (and, with dropout, for its random numbers).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

__all__ = ["Alone", "Rank"]

_T = TypeVar("_T")


class Rank(Protocol):
    """The place of a learner among the others, and the way to them. All call the same methods in turn."""

    @property
    def number(self) -> int:
        """From 0."""
        ...

    @property
    def count(self) -> int:
        """Learners in all."""
        ...

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks; they have the same shapes everywhere."""
        ...

    def gather(self, value: _T) -> list[_T]:
        """Return the value of every rank, in their order."""
        ...


@dataclass(frozen=True)
class Alone:
    """A single learner."""

    number: int = 0
    count: int = 1

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: the sum over one rank is what is there."""

    def gather(self, value: _T) -> list[_T]:
        return [value]
