"""The evidence for a proof: what a log holds of one run at one moment."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from unstable_stream.errors import EventError
from unstable_stream.events import (
    Checkpoint,
    Event,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Rating,
    RecordRejected,
    RunStarted,
    Step,
    Trajectory,
)
from unstable_stream.history.proofs.ledger import Ledger
from unstable_stream.log.port import EventLog, Positions, StoredRecord
from unstable_stream.log.reading import read_to_end, readable_event
from unstable_stream.log.records import event_from_record
from unstable_stream.model_pool import RatingProcessor
from unstable_stream.reward_transformations import RewardProcessor
from unstable_stream.runs.history import RunStatus, read_history
from unstable_stream.runs.starts import deleted_records, recorded_starts, within
from unstable_stream.services.streams.processor import group_of

# The end of the run first, since it claims that all else is there. Then effects before causes: of a run that
# is going on, every effect below the ends has its cause there. What is appended at once stands together.
_TOPICS: Final = (
    (RunStarted.TOPIC,),
    (RecordRejected.TOPIC,),
    (LearnerUpdate.TOPIC, Checkpoint.TOPIC),
    (Rating.TOPIC,),
    (Step.TOPIC,),
    (Trajectory.TOPIC, GameOutcome.TOPIC, GameStarted.TOPIC),
)
_REPORT_EVERY: Final = 200

Progress = Callable[[str, int, int], None]
"""Called with the present check, the number of its finished records, and the most there can be."""


@dataclass(frozen=True)
class Evidence:
    """One run as the log holds it at one moment: nothing beyond ``ends`` is looked at."""

    log: EventLog
    run: RunStatus
    ends: Mapping[str, Positions]
    """By topic."""
    trimmed: Mapping[str, bool]
    """By topic, true if retention has deleted records that may be of the run."""
    missing: Sequence[str]
    """Tells in words which of these records are gone; steps and ratings follow from the others."""
    starts: Positions
    """The offsets at which the run began: none of its records lies below."""
    compacted: bool
    """True if only the newest rating of each model is certain to exist."""
    processed: Mapping[str, Positions]
    """By topic, the positions of its processor; empty if they are unknown."""
    progress: Progress

    @classmethod
    async def read(
        cls, log: EventLog, run_id: str, progress: Progress = lambda what, done, total: None
    ) -> "Evidence":
        """Look at the log now; raises :class:`RunError` if there is no run of exactly this id."""
        run = (await read_history(log)).run(run_id)
        # Read the positions before the ends: all results of processed records are then below the ends.
        processed = {
            processor.inputs[0]: await _processed(log, processor.name, run_id)
            for processor in (RewardProcessor, RatingProcessor)
        }
        ends = await _ends(log)
        settings = await log.topic_settings()
        began = recorded_starts(run.began, await log.log_id(), ends)
        trimmed: dict[str, bool] = {}
        for topic in ends:
            kept = await log.beginning_offsets(topic)
            trimmed[topic] = any(begin > began.get(at, 0) for at, begin in kept.items())
        return cls(
            log=log,
            run=run,
            ends=ends,
            trimmed=trimmed,
            missing=await deleted_records(log, began, ends),
            starts=await within(log, began),
            compacted=log.compacts and settings[Rating.TOPIC].cleanup_policy == "compact",
            processed=processed,
            progress=progress,
        )

    async def ledger(self) -> Ledger:
        """Fold all of it into a ledger."""
        ledger = Ledger(self.run, steps_kept=not self.trimmed[Step.TOPIC])
        for topic in self.ends:
            # The archiver rejects records on behalf of all runs.
            whose = None if topic == RecordRejected.TOPIC else self.run.run_id
            async for record in self._records(topic, f"reading {topic}", whose):
                try:
                    event = event_from_record(record)
                except EventError as error:
                    # Nobody writes a letter about a dead letter, so none can be missing.
                    if topic != RecordRejected.TOPIC:
                        ledger.unreadable[str(record)] = str(error)
                else:
                    ledger.apply(event, record.partition, record.offset)
        return ledger

    async def events(self, topic: str, what: str) -> AsyncIterator[tuple[StoredRecord, Event]]:
        """Yield the run's events of a topic, and report progress as ``what``."""
        async for record in self._records(topic, what, self.run.run_id):
            event = readable_event(record)
            if event is not None and event.run_id == self.run.run_id:
                yield record, event

    async def _records(self, topic: str, what: str, run_id: str | None) -> AsyncIterator[StoredRecord]:
        ends = self.ends[topic]
        done, total = 0, sum(ends.values())
        starts = None
        if run_id is not None:
            starts = {at: start for at, start in self.starts.items() if at.topic == topic}
        async for record in read_to_end(self.log, (topic,), run_id=run_id, starts=starts, ends=ends):
            yield record
            done += 1
            if done % _REPORT_EVERY == 0:
                self.progress(what, done, total)


async def _ends(log: EventLog) -> dict[str, Positions]:
    ends: dict[str, Positions] = {}
    for topics in _TOPICS:
        first = topics[0]
        while first not in ends or (await log.end_offsets(first)) != ends[first]:
            for topic in topics:
                ends[topic] = await log.end_offsets(topic)
            if len(topics) == 1:
                break
    return ends


async def _processed(log: EventLog, processor: str, run_id: str) -> Positions:
    """Return the positions of a processor, which may serve this run or all runs."""
    alone = await log.committed_positions(group_of(processor, run_id))
    shared = await log.committed_positions(group_of(processor, None))
    return {at: max(alone.get(at, 0), shared.get(at, 0)) for at in alone.keys() | shared.keys()}
