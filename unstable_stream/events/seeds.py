"""Derive every seed of a run from its one seed by hashing; and SplitMix64, for millions of random numbers.

Training and evaluation draw from disjoint halves: training seeds are even, evaluation seeds odd.

SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014) is fixed
arithmetic on 64-bit words, so it gives the same numbers on every machine and in every version. Output ``n``
of a generator in state ``s``, counted from 0, is ``split_mix(s + n * SPLIT_MIX_GAMMA)``.
"""

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

SPLIT_MIX_GAMMA: Final = 0x9E3779B97F4A7C15
"""The increment of a SplitMix64 generator's state at every output."""
_WORD: Final = (1 << 64) - 1
_FIRST_FACTOR: Final = 0xBF58476D1CE4E5B9
_SECOND_FACTOR: Final = 0x94D049BB133111EB


def derive_seed(*parts: object) -> int:
    """Return a number in ``[0, 2**31)`` that depends on every part and on their order."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & 0x7FFF_FFFF


def train_game_seed(run_seed: int, game_index: int) -> int:
    """Return the seed of a training game: always even."""
    return derive_seed(run_seed, "train", game_index) & ~1


def eval_game_seed(run_seed: int, env_id: str, number: int) -> int:
    """Return the seed of the ``number``-th evaluation game: always odd, the same for every checkpoint."""
    return derive_seed(run_seed, "eval", env_id, number) | 1


def split_mix(state: int) -> int:
    """Return a SplitMix64 generator's first output, in ``[0, 2**64)``; only 64 bits of ``state`` count."""
    word = (state + SPLIT_MIX_GAMMA) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST_FACTOR) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND_FACTOR) & _WORD
    return word ^ (word >> 31)


def split_mix_array(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return :func:`split_mix` of every state."""
    words = states + np.uint64(SPLIT_MIX_GAMMA)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST_FACTOR)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND_FACTOR)
    return words ^ (words >> np.uint64(31))
