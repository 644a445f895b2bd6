"""Give the metrics of a run to a tracker afterwards, from its events, also while the run goes on.

The rolling means and the numbers of updates are folded anew from games and updates, so that runs have them
that were recorded without; other metrics are taken from topic ``metrics``. What the tracker has received
before, in the run or in a back-fill that was interrupted, is left out.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.algorithms.rolling_metrics import SOURCE, MetricsProcessor
from unstable_stream.errors import RunError
from unstable_stream.events import Event, Metrics, RunFinished, RunResumed, RunStarted
from unstable_stream.events.id_sets import digest
from unstable_stream.log.port import TopicPartition
from unstable_stream.log.reading import readable_events
from unstable_stream.services.streams.ordered_history import History, RecordFilter, Slice, merged
from unstable_stream.services.streams.trackers import Received, RunTracker, tell

_TOPICS: Final = (*MetricsProcessor.inputs, Metrics.TOPIC, RunStarted.TOPIC)
_LOOK_EVERY_S: Final = 2.0


@dataclass(slots=True)
class Tracked:
    """The result of a back-fill."""

    run_id: str
    events: int = 0
    """Events of the run that were read."""
    given: int = 0
    """Metrics events that the tracker was given."""
    known: int = 0
    """Metrics events that it had before."""
    update: int = 0
    """The newest learner update among all of them."""


async def track(
    history: History,
    run_id: str,
    tracker: RunTracker,
    received: Received,
    *,
    follow: bool = False,
    progress: Callable[[int, int], None] = lambda read, total: None,
) -> Tracked:
    """Give a tracker every metric of a run, each once, and close it.

    Args:
        history: what is recorded; asked again for what came since.
        run_id: full id.
        tracker: where the metrics go.
        received: what it has, which is kept up to date.
        follow: go on until the run ends.
        progress: told how many records have been read, and how many there are.

    Raises:
        RunError: the tracker cannot write.
    """
    feed = _Feed(run_id, tracker, received)
    position: dict[TopicPartition, int] = {}
    try:
        while True:
            exist = await history.topics()
            topics = tuple(topic for topic in _TOPICS if topic in exist)
            there = await Slice(topics).of(history)
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
            if feed.ended or not follow:
                feed.give(feed.fold.rest())
                return feed.done
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        getattr(tracker, "close", lambda: None)()


class _Feed:
    """The fold of the run, and the tracker that its metrics go to."""

    def __init__(self, run_id: str, tracker: RunTracker, received: Received) -> None:
        self.done = Tracked(run_id)
        self.ended = False
        self.fold = MetricsProcessor(run_id)
        self._tracker = tracker
        self._received = received
        self._known = received.read()

    def take(self, events: Iterator[Event] | Sequence[Event]) -> None:
        for event in events:
            self.done.events += 1
            if isinstance(event, RunStarted | RunResumed):
                self.ended = False
            elif isinstance(event, RunFinished):
                self.ended = True
            elif not isinstance(event, Metrics):
                self.give(self.fold.handle(event))
            elif event.source != SOURCE:  # those of this source are folded anew
                self.give([event])

    def give(self, metrics: Sequence[Metrics]) -> None:
        """Give the tracker what it has not had yet."""
        new: list[str] = []
        for event in metrics:
            self.done.update = max(self.done.update, event.update or 0)
            known = digest(event.event_id.encode())
            if known in self._known:
                self.done.known += 1
                continue
            try:
                tell(self._tracker, event)
            except OSError as error:
                raise RunError(
                    f"the tracker cannot write: {error}; make room, or name another --out, and run it "
                    "again: it goes on where it was"
                ) from error
            self._known.add(known)
            new.append(event.event_id)
        self.done.given += len(new)
        self._received.add(new)
