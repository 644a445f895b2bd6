"""State at a position: what a fold has come to, saved with the offsets up to which it has read.

The collector saves it in the log, the learner in a file beside each checkpoint. It may be deleted at any
time: the fold then reads its records again, with the same result. So a state that is damaged, of another
format, or of a fold with other settings is not used; only a log that has lost what the state knows is an
error.
"""

import zlib
from typing import TypeVar

import msgspec

from unstable_stream.log.port import EventLog, Positions, TopicPartition
from unstable_stream.log.reading import check_offsets


class UnusableStateError(ValueError):
    """A saved state that cannot be used; the message is the reason."""


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """The common part of every saved state; a fold adds its own fields."""

    format: int
    """Raised when the fold or its state changes."""
    digest: str
    """Identifies the fold: whose it is, and with which settings and code."""
    log_id: str
    """The log that the positions belong to."""
    positions: list[tuple[str, int, int]]
    """Topic, partition, and the next offset to read: the state has all records before."""

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The positions, by partition."""
        return {TopicPartition(topic, number): offset for topic, number, offset in self.positions}


_S = TypeVar("_S", bound=SavedState)


def saved_positions(positions: Positions) -> list[tuple[str, int, int]]:
    """Return positions as a saved state holds them."""
    return [(*at, offset) for at, offset in sorted(positions.items())]


def pack_state(state: SavedState) -> bytes:
    """Return the bytes to save."""
    return zlib.compress(msgspec.json.encode(state), 1)  # its checksum tells damaged bytes


def unpack_state(saved: bytes, kind: type[_S], form: int, digest: str) -> _S:
    """Return a saved state, if it is one of this fold.

    Raises:
        UnusableStateError: it is damaged, or of another format or fold.
    """
    try:
        state = msgspec.json.decode(zlib.decompress(saved), type=kind)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableStateError(str(error)) from error
    if state.format != form:
        raise UnusableStateError(f"its format is {state.format}, expected {form}")
    if state.digest != digest:
        raise UnusableStateError("it was made with other settings or other code, or is of another run")
    return state


async def check_state(log: EventLog, state: SavedState) -> None:
    """Look whether the log is the one that the state was folded from.

    Raises:
        UnusableStateError: it is another log.
        OffsetOutOfRangeError: it has lost records that the state knows.
    """
    if state.log_id != await log.log_id():
        raise UnusableStateError(f"it belongs to log {state.log_id}")
    await check_offsets(log, state.offsets, expiring=True)
