"""The batch that all sides train on, and the shapes of the models.

It is written to a file once, and every side reads that file. Only NumPy is needed here, because the peers'
environment has no ``unstable_stream``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

RANK: Final = 16
"""Of the LoRA adapter, on all projections; its alpha is twice that."""

_FIRST_CHARACTER: Final = 0xF0000
"""The first character for private use that has room for a vocabulary."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model with random weights, and its batch."""

    kind: str
    """``qwen3`` or ``llama``."""
    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool
    """Whether the output head is the embedding."""
    samples: int
    """An even number: advantages come in pairs."""
    rows: tuple[int, ...]
    """Rows of a micro-batch to try for a peer, of which the fastest is measured. Where lengths are mixed, 1
    is among them: its gradient has no padding in it."""
    mixed_lengths: bool
    """Most turns short and a few several times as long; or all alike."""


SHAPES: Final = {
    # The tiny player of the quickstart: 20 tokens of prompt, two of answer.
    "tiny": Shape("qwen3", 2, 128, 256, 4, 2, 39, False, 512, (64, 512), False),
    "17M": Shape("qwen3", 8, 384, 768, 6, 3, 8192, False, 16, (1, 4), True),
    "smollm2": Shape("llama", 30, 576, 1536, 9, 3, 49152, True, 4, (1, 4), True),
}


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples of different lengths, one after the other."""

    tokens: NDArray[np.int32]
    """Prompt and completion of each sample in turn."""
    prompt_lengths: NDArray[np.int32]
    """Tokens."""
    completion_lengths: NDArray[np.int32]
    """Tokens."""
    advantages: NDArray[np.float32]
    """One for each sample."""

    def __len__(self) -> int:
        return len(self.advantages)

    @property
    def trained_tokens(self) -> int:
        """Completion tokens of all samples: what a rate counts."""
        return int(self.completion_lengths.sum())

    @property
    def longest_completion(self) -> int:
        """Tokens; the constant by which sums over tokens are divided (Dr. GRPO)."""
        return int(self.completion_lengths.max())

    def sample(self, index: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the token ids of a sample's prompt and completion."""
        starts = np.concatenate([[0], np.cumsum(self.prompt_lengths + self.completion_lengths)])
        prompt = int(starts[index]) + int(self.prompt_lengths[index])
        return self.tokens[starts[index] : prompt], self.tokens[prompt : starts[index + 1]]

    def save(self, path: Path) -> None:
        """Write it as an ``.npz`` file."""
        np.savez(
            path,
            tokens=self.tokens,
            prompt_lengths=self.prompt_lengths,
            completion_lengths=self.completion_lengths,
            advantages=self.advantages,
        )

    @classmethod
    def load(cls, path: Path) -> "Batch":
        """Read what :meth:`save` wrote."""
        with np.load(path) as arrays:
            return cls(**arrays)


def make_batch(shape: Shape, seed: int = 0) -> Batch:
    """Return random samples for a shape.

    The advantages of samples ``2 k`` and ``2 k + 1`` add up to zero. So GRPO, which subtracts the mean of a
    group, makes the same advantages of them if they are the rewards of groups of two.
    """
    rng = np.random.default_rng(seed)
    prompts = np.full(shape.samples, 20)
    completions = np.full(shape.samples, 2)
    if shape.mixed_lengths:
        prompts = np.clip(rng.lognormal(4.6, 0.5, shape.samples), 30, 600).astype(int)
        completions = np.clip(rng.lognormal(3.7, 0.9, shape.samples), 5, 600).astype(int)
    half = rng.normal(size=shape.samples // 2)
    return Batch(
        # Token 0 ends a text and pads it, and occurs in none.
        tokens=rng.integers(1, shape.vocabulary, int((prompts + completions).sum())).astype(np.int32),
        prompt_lengths=prompts.astype(np.int32),
        completion_lengths=completions.astype(np.int32),
        advantages=np.stack([half, -half], axis=1).ravel().astype(np.float32),
    )


def text_of(tokens: NDArray[np.int32] | range) -> str:
    """Return the text of token ids, one character for each: a learner that is given text tokenizes it."""
    return "".join(chr(_FIRST_CHARACTER + int(token)) for token in tokens)
