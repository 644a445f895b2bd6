"""Every seed of a run, derived from the run's one seed by hashing.

Training and evaluation draw from disjoint halves: training seeds are even, evaluation seeds odd.
"""

import hashlib

__all__ = ["derive_seed", "eval_game_seed", "train_game_seed"]


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
