"""One learner among several that train on the same batch: data parallelism.

Every rank has the whole model, gets the whole batch and makes the same decisions. Of each optimizer step's
micro-batches it computes a part; the gradients are added up over the ranks, and all take the same step. So
the weights stay equal without ever being sent, and they are those of a single learner but for the order of
sums (and, with dropout, for its random numbers).
"""

import os
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

_T = TypeVar("_T")
_TIMEOUT: Final = timedelta(minutes=30)
"""Longer than any update: a rank that waits for a slower one must not give up."""
_BUCKET_ELEMENTS: Final = 2**24
"""Gradients added up at a time: 64 MB in float32."""
_LOOPBACK: Final = "lo"


class Rank:
    """The place of a learner among the others, and the way to them. All call the same methods in turn.

    This one is alone: a sum over one rank is what is there.
    """

    number: int = 0
    """From 0."""
    count: int = 1
    """Learners in all."""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks; they have the same shapes everywhere."""

    def gather(self, value: _T) -> list[_T]:
        """Return the value of every rank, in their order."""
        return [value]


class TorchRank(Rank):
    """A rank of torch.distributed: nccl adds up between GPUs, gloo between CPUs of one machine. There is one
    group in a process.
    """

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.count = count

    def join(self, meeting: Path, *, on_gpu: bool) -> None:
        """Join the group; returns when all have. They meet at a file: no port is open to strangers."""
        if _LOOPBACK in {name for _, name in socket.if_nameindex()}:
            # All ranks are on this machine, and what they say is nobody else's business.
            for backend in ("GLOO", "NCCL"):
                os.environ.setdefault(f"{backend}_SOCKET_IFNAME", _LOOPBACK)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            init_method=f"file://{meeting}",
            rank=self.number,
            world_size=self.count,
            timeout=_TIMEOUT,
        )

    def leave(self) -> None:
        """Leave the group, if it was joined."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Sum each tensor over the ranks, in place, many of them in one message."""
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, value: _T) -> list[_T]:
        """Return the value of every rank."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value)
        return found


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and size + tensor.numel() > _BUCKET_ELEMENTS:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket
