"""Give a run to a tracker afterwards, from its events, also while the run goes on.

Of metrics, the rolling means and the numbers of updates are folded anew from games and updates, so that runs
have them that were recorded without; other metrics are taken from topic ``metrics``. What the tracker has
received before, in the run or in a back-fill that was interrupted, is left out.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.algorithms.rolling_metrics import SOURCE, MetricsProcessor
from unstable_stream.errors import RunError
from unstable_stream.events import (
    Checkpoint,
    Event,
    LearnerUpdate,
    Metrics,
    RunFinished,
    RunResumed,
    RunStarted,
)
from unstable_stream.events.id_sets import digest
from unstable_stream.log.port import TopicPartition
from unstable_stream.log.reading import readable_events
from unstable_stream.services.streams.ordered_history import History, RecordFilter, Slice, merged
from unstable_stream.services.streams.trackers import EventTracker, Piece, Received, RunTracker, tell

_LOOK_EVERY_S: Final = 2.0


@dataclass(slots=True)
class Tracked:
    """The result of a back-fill."""

    run_id: str
    events: int = 0
    """Events of the run that were read."""
    given: int = 0
    """Metrics events, or pieces of a tracker of events, that it was given."""
    known: int = 0
    """Those that it had before."""
    update: int = 0
    """The newest learner update that was read."""
    unit: str = ""
    """The word for what was given, in the plural."""


async def track(
    history: History,
    run_id: str,
    tracker: RunTracker | EventTracker,
    received: Received,
    *,
    follow: bool = False,
    progress: Callable[[int, int], None] = lambda read, total: None,
) -> Tracked:
    """Give a tracker all of a run, each piece once, and close it.

    Args:
        history: what is recorded; asked again for what came since.
        run_id: full id.
        tracker: where it goes.
        received: what it has, which is kept up to date.
        follow: go on until the run ends.
        progress: told how many records have been read, and how many there are.

    Raises:
        RunError: the tracker cannot write.
    """
    takes: EventTracker = tracker if isinstance(tracker, EventTracker) else _MetricsOf(run_id, tracker)
    feed = _Feed(run_id, takes, received)
    position: dict[TopicPartition, int] = {}
    try:
        while True:
            exist = await history.topics()
            # The end of the run is looked for before the rest of it, and effects before their causes: what
            # is written between the looks is left for the next pass, and nothing comes without its cause.
            topics = tuple(topic for topic in (RunStarted.TOPIC, *takes.topics) if topic in exist)
            there = await history.partitions(topics)
            new = {
                at: (max(first, position.get(at, 0)), end)
                for at, (first, end) in there.items()
                if end > position.get(at, 0)
            }
            if new:
                wanted = Slice(topics, new, RecordFilter(run_id))
                total = sum(end - start for start, end in new.values())
                async for piece in merged(history, wanted):
                    feed.take(readable_events(piece.records))
                    progress(piece.read, total)
                position |= {at: end for at, (_, end) in new.items()}
            feed.send()
            if feed.ended or not follow:
                feed.give(takes.rest())
                feed.send()
                return feed.done
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        takes.close()


class _MetricsOf:
    """A tracker of metrics as one of events: the metrics are the pieces."""

    topics: Sequence[str] = (Metrics.TOPIC, *MetricsProcessor.inputs)
    batch = 1
    unit = "metrics events"

    def __init__(self, run_id: str, tracker: RunTracker) -> None:
        self._fold = MetricsProcessor(run_id)
        self._tracker = tracker

    def handle(self, event: Event) -> list[Piece]:
        if isinstance(event, Metrics):  # those of this source are folded anew
            return [] if event.source == SOURCE else _pieces([event])
        return _pieces(self._fold.handle(event)) if event.TOPIC in MetricsProcessor.inputs else []

    def rest(self) -> list[Piece]:
        return _pieces(self._fold.rest())

    def send(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            tell(self._tracker, piece.content)

    def close(self) -> None:
        getattr(self._tracker, "close", lambda: None)()


def _pieces(metrics: Sequence[Metrics]) -> list[Piece]:
    return [Piece(event.event_id, event) for event in metrics]


class _Feed:
    """Passes the events of a run through a tracker, and has it send what is new."""

    def __init__(self, run_id: str, tracker: EventTracker, received: Received) -> None:
        self.done = Tracked(run_id, unit=tracker.unit)
        self.ended = False
        self._tracker = tracker
        self._received = received
        try:
            self._known = received.read()
        except OSError as error:
            raise _cannot_write(error) from error
        self._waiting: list[Piece] = []

    def take(self, events: Iterator[Event] | Sequence[Event]) -> None:
        for event in events:
            self.done.events += 1
            if isinstance(event, RunStarted | RunResumed):
                self.ended = False
            elif isinstance(event, RunFinished):
                self.ended = True
            elif isinstance(event, LearnerUpdate | Metrics):
                self.done.update = max(self.done.update, event.update or 0)
            elif isinstance(event, Checkpoint):
                self.done.update = max(self.done.update, event.iteration)
            self.give(self._tracker.handle(event))

    def give(self, pieces: Sequence[Piece]) -> None:
        """Take what the tracker has not had yet, and have it sent when there is enough."""
        for piece in pieces:
            known = digest(piece.piece_id.encode())
            if known in self._known:
                self.done.known += 1
                continue
            self._known.add(known)
            self._waiting.append(piece)
            if len(self._waiting) >= self._tracker.batch:
                self.send()

    def send(self) -> None:
        """Have sent what waits, and note it."""
        if not self._waiting:
            return
        try:
            self._tracker.send(self._waiting)
            self._received.add(piece.piece_id for piece in self._waiting)
        except OSError as error:
            raise _cannot_write(error) from error
        self.done.given += len(self._waiting)
        self._waiting = []


def _cannot_write(error: OSError) -> RunError:
    return RunError(
        f"the tracker cannot write: {error}; make room, or name another --out, and run it again: it goes on "
        "where it was"
    )
