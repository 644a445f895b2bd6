"""Know the newest records of a partition by their content.

An offset alone does not tell whether the log is still the one that was archived: after a power cut, or on
Kafka after an unclean leader election, a log may have lost its last records and have others at their offsets.
So a position is stored with the digests of the records right before it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

from unstable_stream.archive.batch import ArchivedRecord
from unstable_stream.record_digest import content_digest

__all__ = ["KEPT", "Newest", "added", "decode_newest", "encode_newest", "newest_of"]

Newest: TypeAlias = Mapping[int, str]
"""Offset to content digest, of the last records of a partition, in the order of their offsets."""

KEPT: Final = 8
"""Records. More than one, since a lost record and the one that took its place may be equal."""


def newest_of(records: Iterable[ArchivedRecord]) -> dict[int, str]:
    """Return the digests of the last of these records of one partition, which come in order."""
    last = list(records)[-KEPT:]
    return {record.offset: content_digest(record.key, record.timestamp_ms, record.value) for record in last}


def added(before: Newest, records: Iterable[ArchivedRecord]) -> dict[int, str]:
    """Return the newest after these records have come."""
    together = {**before, **newest_of(records)}
    return dict(list(together.items())[-KEPT:])


def encode_newest(newest: Newest) -> str:
    """Return the newest as the table ``positions`` keeps them."""
    return msgspec.json.encode(newest).decode()


def decode_newest(text: str | None) -> dict[int, str]:
    """Return what :func:`encode_newest` encoded; an archive of an older version knows none."""
    return msgspec.json.decode(text or "{}", type=dict[int, str])
