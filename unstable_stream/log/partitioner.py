"""Kafka's default partitioner: every adapter puts a key into the same partition.

Source: ``org.apache.kafka.common.utils.Utils.murmur2`` and ``BuiltInPartitioner.partitionForKey``.
"""

from functools import lru_cache
from typing import Final

_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of ``data`` with Kafka's seed, as an unsigned number."""
    length = len(data)
    mixed = (_SEED ^ length) & _MASK
    whole = length & ~3
    for start in range(0, whole, 4):
        word = (int.from_bytes(data[start : start + 4], "little") * _MULTIPLIER) & _MASK
        word ^= word >> 24
        mixed = ((mixed * _MULTIPLIER) ^ (word * _MULTIPLIER)) & _MASK
    if whole < length:
        mixed ^= int.from_bytes(data[whole:], "little")
        mixed = (mixed * _MULTIPLIER) & _MASK
    mixed ^= mixed >> 13
    mixed = (mixed * _MULTIPLIER) & _MASK
    return mixed ^ (mixed >> 15)


@lru_cache(maxsize=65_536)  # keys repeat (run/env, game), and hashing in Python is the largest cost
def partition_for_key(key: str, partitions: int) -> int:
    """Return the partition of the records of ``key``, ``0 <= p < partitions``."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions
