"""Cut a batch into optimizer steps, and these into micro-batches of rows of similar length."""

from collections.abc import Sequence

import numpy as np


def micro_batches(
    lengths: Sequence[int], *, max_rows: int, max_tokens: int, overhead_tokens: int
) -> list[list[int]]:
    """Divide rows into the micro-batches that cost least: rows are sorted by length, longest first, and cut.

    A micro-batch costs its rows times the longest of them, and ``overhead_tokens``. So rows share one
    unless it would pad them by more. The best cuts are found from the shortest rows on (dynamic programming,
    as lines of text are broken in D. E. Knuth and M. F. Plass, Breaking Paragraphs into Lines, 1981).

    Args:
        lengths: the number of tokens of each row.
        max_rows: the most rows of a micro-batch.
        max_tokens: the most tokens of a micro-batch: rows times the longest row, with padding. A single
            longer row gets a micro-batch of its own.
        overhead_tokens: what a micro-batch costs whatever it holds, in tokens. That rows may share what their
            beginnings have in common, once in each micro-batch, is not counted.

    Returns:
        Indices into ``lengths``, each exactly once; equal lengths keep their order. The micro-batch with most
        tokens is the first: if memory runs out, it does so at once, and others fit into what was allocated.
    """
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    count = len(order)
    costs = np.zeros(count + 1, dtype=np.int64)  # of the rows from one on
    rows = [0] * count  # in the micro-batch that begins with one
    for first in reversed(range(count)):
        width = max(1, lengths[order[first]])
        most = min(max_rows, max(1, max_tokens // width), count - first)
        # Of equal costs the most rows, so that what does not fill a micro-batch comes last.
        choices = np.arange(most, 0, -1)
        total = overhead_tokens + choices * width + costs[first + choices]
        best = int(total.argmin())
        costs[first], rows[first] = total[best], int(choices[best])
    result: list[tuple[int, list[int]]] = []
    first = 0
    while first < count:
        tokens = rows[first] * lengths[order[first]]
        result.append((tokens, order[first : first + rows[first]]))
        first += rows[first]
    return [rows for _, rows in sorted(result, key=lambda one: -one[0])]


def optimizer_chunks(count: int, steps: int, *, seed: int, update: int, epoch: int = 0) -> list[list[int]]:
    """Split ``count`` samples into ``steps`` chunks of nearly equal size; ``seed``, ``update`` and ``epoch``
    shuffle them.

    One chunk keeps the batch order. Fewer samples than steps give one chunk per sample.
    """
    if steps == 1:
        return [list(range(count))]
    order = np.random.default_rng([seed, update, *([epoch] if epoch else [])]).permutation(count)
    return [chunk.tolist() for chunk in np.array_split(order, min(steps, count))]
