"""Divide a batch into optimizer steps and into micro-batches of rows of similar length."""

from collections.abc import Sequence

import numpy as np

__all__ = ["micro_batches", "optimizer_chunks"]


def micro_batches(lengths: Sequence[int], *, max_rows: int, max_tokens: int) -> list[list[int]]:
    """Divide rows into micro-batches with little padding: rows are sorted by length, longest first.

    Args:
        lengths: the number of tokens of each row.
        max_rows: the most rows of a micro-batch.
        max_tokens: the most tokens of a micro-batch: rows times the longest row, with padding. A single
            longer row gets a micro-batch of its own.

    Returns:
        Indices into ``lengths``, each exactly once; equal lengths keep their order. Longest first: if
        memory runs out, it does so at once, and later micro-batches fit into what was allocated.
    """
    result: list[list[int]] = []
    width = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        current = result[-1] if result else []
        if not current or len(current) == max_rows or (len(current) + 1) * width > max_tokens:
            result.append([])
            width = lengths[index]
        result[-1].append(index)
    return result


def optimizer_chunks(count: int, steps: int, *, seed: int, update: int, epoch: int = 0) -> list[list[int]]:
    """Split ``count`` samples into ``steps`` chunks of nearly equal size; ``seed``, ``update`` and ``epoch``
    shuffle them.

    One chunk keeps the batch order. Fewer samples than steps give one chunk per sample.
    """
    if steps == 1:
        return [list(range(count))]
    order = np.random.default_rng([seed, update, *([epoch] if epoch else [])]).permutation(count)
    return [chunk.tolist() for chunk in np.array_split(order, min(steps, count))]
