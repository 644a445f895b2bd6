"""Define every error that a user can meet, in small families under one root.

A message says what went wrong, where (run, game, ``topic[partition]@offset``), what was found, what
was expected and what to do about it. Shells retry on :attr:`UnstableStreamError.retriable`, never on
message text. The command line prints these as one line; anything else is a bug and keeps its traceback.
"""

from collections.abc import Iterable
from typing import ClassVar, Final, Self


class UnstableStreamError(Exception):
    """Root of every error this package raises on purpose."""

    retriable: ClassVar[bool] = False
    """``True`` if the same call may succeed later although nobody changes anything."""
    final: ClassVar[bool] = False
    """``True`` if a service must not start again before somebody has mended the cause: it would go on without
    what is missing."""


class ConfigError(UnstableStreamError):
    """A configuration that cannot run: unknown key, impossible combination, missing model or environment."""


class RunError(UnstableStreamError):
    """A run that does not exist, already exists, or cannot be resumed."""


class ServiceError(UnstableStreamError):
    """A service that could not be started or kept dying."""


class PluginError(UnstableStreamError):
    """A plug-in consumer that cannot be loaded, is declared wrongly, or keeps what cannot be saved."""


# -- events ---------------------------------------------------------------------------------------


class EventError(UnstableStreamError):
    """A record that cannot be turned into an event."""


class EventDecodeError(EventError):
    """Malformed bytes or a field of the wrong type; the message carries the field path."""


class UnknownEventError(EventError):
    """An event type that this version of the package does not know."""


class UnknownSchemaVersionError(EventError):
    """An event written by a newer version of the package: an error, not a guess."""


# -- event log ------------------------------------------------------------------------------------


class EventLogError(UnstableStreamError):
    """A failed operation on the event log."""


class UnknownTopicError(EventLogError):
    """The topic or partition does not exist in this log."""


class PartitionsChangedError(EventLogError):
    """A topic has another number of partitions than before, so that records of a key are not in order."""


class OffsetOutOfRangeError(EventLogError):
    """The position asked for lies before the first retained record or beyond the end."""

    final = True

    @classmethod
    def of(cls, partition: object, offset: int, begin: int, end: int) -> Self:
        """Return the error for a position in a partition that begins and ends elsewhere."""
        if offset < begin:
            reason = (
                "The records before were deleted by retention, though of a run that goes on nothing may "
                "expire (unstable-stream topics check): restore them, or seek to the beginning and count "
                "them as lost"
            )
        else:
            reason = (
                "The log is shorter than what was read of it: it lost acknowledged records, or is an older "
                "copy, or another log. Nothing was changed. Restore a copy of the log that reaches this "
                'position, and go on: docs/how-to/operations.md, "The log is shorter than what was read"'
            )
        return cls(
            f"{partition}@{offset} is out of range: this log has offsets {begin} up to (not including) "
            f"{end}. {reason}"
        )


class RecordTooLargeError(EventLogError):
    """A record exceeds its topic's ``max_message_bytes``."""


class FencedError(EventLogError):
    """A newer producer or group generation has taken over; this one must stop without publishing."""


class LogUnavailableError(EventLogError):
    """The log could not be reached or stayed locked past the deadline."""

    retriable = True


# -- games and inference --------------------------------------------------------------------------


class GameError(UnstableStreamError):
    """A game that could not be played to an end; the message names game, environment and turn."""


class EnvironmentUnavailableError(GameError):
    """A TextArena environment that cannot run on this machine, with the reason and the remedy."""


class EngineError(UnstableStreamError):
    """Text generation failed, and the same request would fail again."""


class EngineDiedError(EngineError):
    """An engine that cannot go on, whatever it is asked: no game caused this, and a new engine is needed."""


class AdapterError(EngineDiedError):
    """An adapter that an engine must not play: its file has changed, or the engine does not reproduce it."""


class EngineOverloadedError(EngineError):
    """Text generation failed for now: overload, rate limit, time-out or lost connection."""

    retriable = True


# -- learning and archive -------------------------------------------------------------------------


class LearnerError(UnstableStreamError):
    """Training cannot go on: no trainable tokens, non-finite loss, mismatched adapter."""


class CheckpointError(LearnerError):
    """A checkpoint is missing, incomplete or does not match its recorded digest."""


class StoreError(UnstableStreamError):
    """A store of checkpoints refuses, or what was fetched from it cannot be kept on this host."""


class StoreUnavailableError(StoreError):
    """A store of checkpoints could not be reached for as long as anybody waits for it."""

    retriable = True


class ArchiveError(UnstableStreamError):
    """A failed operation on the archive."""


class ArchiveAheadError(ArchiveError):
    """The archive has records that the log has lost."""

    final = True


class ReportError(UnstableStreamError):
    """A report that cannot be made: plots not installed, or nowhere to write it."""


class ArchiveBusyError(ArchiveError):
    """Another process held the archive's write lock past the deadline, or its store is away."""

    retriable = True


_CLEARLY_MEANT: Final = 0.85


def did_you_mean(name: object, known: Iterable[str], instead: str = "", *, after: str = "") -> str:
    """Return ``did you mean NAME?`` with up to three known names that are close, whatever their case.

    Args:
        name: what was written.
        known: the names there are.
        instead: returned if none is close.
        after: follows the question.
    """
    import difflib  # few commands end in a mistake

    by_lower = {each.lower(): each for each in known}
    wanted = str(name).lower()
    longer = [each for each in by_lower if len(wanted) > 2 and each.startswith(wanted)]  # a beginning of it
    close = [*dict.fromkeys([*difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.6), *longer])]
    alike = {each: difflib.SequenceMatcher(None, wanted, each).ratio() for each in close}
    best = max(alike.values(), default=0.0)
    if best >= _CLEARLY_MEANT:
        close = [each for each in close if alike[each] > best - 0.05]
    names = " or ".join(by_lower[each] for each in close[:3])
    return f"did you mean {names}?{after}" if close else instead
