"""Verifies a run: recomputes every derived event from its causes and compares, byte for byte.

- ``steps`` from trajectories, ``ratings`` from game outcomes: the same folds over the same partitions.
- ``steps`` of a run that trains on replayed ones: from the steps of their origin.
- batches, drops and the use of every step: the draws made again (:mod:`~.verify_batches`).
- games and trajectories: played again from seed and actions (:mod:`~.verify_games`).
- checkpoint files against their recorded digests.

Both sides are compared as this version of the package encodes them, so that a body written before a field
with a default existed is not taken for another. What the processors have yet to read is *pending*: how far
they have come is in their groups' committed positions. Memory grows by some 100 bytes a step, rating and
trajectory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from unstable_stream.errors import EventError
from unstable_stream.events import (
    Checkpoint,
    Event,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Rating,
    Step,
    Trajectory,
    encode_event,
)
from unstable_stream.events.id_sets import digest
from unstable_stream.log.port import EventLog, Positions, StoredRecord, TopicPartition
from unstable_stream.log.reading import TopicReader, events_to_end, readable_event
from unstable_stream.log.records import event_from_record
from unstable_stream.proofs.batches import BatchCheck, PendingStep
from unstable_stream.proofs.derived import DerivedCheck, Expected
from unstable_stream.proofs.evidence import file_digest, weights_of
from unstable_stream.proofs.index import RecordIndex
from unstable_stream.proofs.replayed_steps import recomputed_steps
from unstable_stream.proofs.replays import GameCheck
from unstable_stream.proofs.report import Check, Difference, VerifyReport
from unstable_stream.proofs.scope import RunScope
from unstable_stream.runs.code import changed_code, find_code
from unstable_stream.streams.folds import Processor
from unstable_stream.streams.processors import rating_processor, reward_processor

__all__ = ["verify_run"]

_REPORT_EVERY: Final = 200
_BATCH: Final = 500

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many records of it are done, and how many there are at most."""


async def verify_run(
    log: EventLog,
    run_id: str,
    *,
    games: bool = True,
    jobs: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> VerifyReport:
    """Verify one run, as far as it has come.

    Args:
        log: the event log.
        run_id: the full id.
        games: also play every game again.
        jobs: processes that play.
        progress: told how far it is.

    Raises:
        RunError: no such run.
        ConfigError: its reward transformations cannot be loaded here.
        EnvironmentUnavailableError: its games cannot be played here.
    """
    scope = await RunScope.read(log, run_id)
    find_code(scope.config)
    verifier = _Verifier(log, scope, progress)
    await verifier.check_steps_and_ratings(games, jobs)
    await verifier.check_batches()
    await verifier.check_files()
    return VerifyReport(run_id, scope.state, verifier.checks, changed_code(scope.code, scope.config))


class _Verifier:
    def __init__(self, log: EventLog, scope: RunScope, progress: Progress) -> None:
        self._log = log
        self._scope = scope
        self._progress = progress
        self.checks: list[Check] = []
        self._step_index = RecordIndex(Step.TOPIC)

    def _reward_processor(self) -> Processor:
        rewards = self._scope.config.rewards
        return reward_processor(
            self._scope.run_id,
            rewards.final,
            rewards.step,
            filter_opponent_invalid=self._scope.config.collector.filter_opponent_invalid,
        )

    def _rating_processor(self) -> Processor:
        return rating_processor(self._scope.run_id, self._scope.config.model_pool.draw_probability)

    async def _events(self, topic: str, what: str = "") -> AsyncIterator[tuple[StoredRecord, Event]]:
        """Yield the run's events of a topic, saying ``what`` is being done with them."""
        ends = self._scope.ends[topic]
        done, total = 0, sum(ends.values())
        async for record, event in events_to_end(self._log, (topic,), run_id=self._scope.run_id, ends=ends):
            yield record, event
            done += 1
            if what and done % _REPORT_EVERY == 0:
                self._progress(what, done, total)

    async def _index(self, topic: str, what: str) -> RecordIndex:
        index = RecordIndex(topic)
        async for record, event in self._events(topic, what):
            index.add(record, event.event_id, digest(encode_event(event)))
        index.seal()
        return index

    def _add_check(self, name: str) -> Check:
        self.checks.append(Check(name))
        return self.checks[-1]

    # -- folds and games ----------------------------------------------------------------------

    async def check_steps_and_ratings(self, games: bool, jobs: int) -> None:
        """Fold the trajectories and the outcomes again; with ``games``, also play every game again."""
        steps = self._step_index = await self._index(Step.TOPIC, "reading steps")
        origin_gone = await self._is_origin_gone()
        step_check = DerivedCheck(
            self._add_check("steps"),
            steps,
            comparable=_body,
            trimmed=self._scope.trimmed[Step.TOPIC],
            extras=origin_gone,
        )
        if origin_gone:
            step_check.check.skipped = f"the steps of {self._scope.replayed_run_id} are not on this log"
        ratings = await self._index(Rating.TOPIC, "reading ratings")
        rating_check = DerivedCheck(
            self._add_check("ratings"),
            ratings,
            comparable=_body,
            compacted=self._scope.compacted,
        )
        game_check = GameCheck(self._log, self._add_check, self._scope.config, jobs) if games else None
        try:
            if game_check is not None:
                async for record, event in self._events(GameStarted.TOPIC, "reading games"):
                    if isinstance(event, GameStarted):
                        game_check.add_started(record, event)
            await self._fold(
                Trajectory.TOPIC, self._reward_processor, step_check, game_check, "folding trajectories"
            )
            await self._expect_replayed(step_check)
            await step_check.finish(self._log)
            what = "playing games again" if games else "folding outcomes"
            await self._fold(GameOutcome.TOPIC, self._rating_processor, rating_check, game_check, what)
            await rating_check.finish(self._log)
            if game_check is not None:
                await game_check.finish()
        finally:
            if game_check is not None:
                game_check.close()

    async def _is_origin_gone(self) -> bool:
        """Whether it trains on steps whose origin this log has not, or not all of."""
        if self._scope.replayed_run_id is None:
            return False
        async for _ in events_to_end(self._log, (Step.TOPIC,), run_id=self._scope.replayed_run_id):
            return self._scope.trimmed[Step.TOPIC]
        return True

    async def _expect_replayed(self, check: DerivedCheck) -> None:
        """Of a run that trains on another's steps: expect those it has that follow from them."""
        scope = self._scope
        if scope.replayed_run_id is None:
            return
        steps = recomputed_steps(self._log, scope.run_id, scope.replayed_run_id, self._step_index)
        async for record, step in steps:
            body = encode_event(step)
            check.expect(Expected(step.event_id, digest(body), partial(bytes, body), str(record)))

    async def _fold(
        self,
        topic: str,
        make: Callable[[], Processor],
        check: DerivedCheck,
        games: "GameCheck | None",
        what: str,
    ) -> None:
        processors: dict[int, Processor] = {}
        processed = self._scope.processed[topic]
        async for record, event in self._events(topic, what):
            processor = processors.get(record.partition)
            if processor is None:
                processor = processors[record.partition] = make()
            if processed:
                due = record.offset < processed.get(TopicPartition(topic, record.partition), 0)
            else:
                # Nobody remembers how far the processor had come; a completed run had drained its topics.
                due = self._scope.state == "completed"
            if games is not None:
                await games.apply(record, event)
            try:
                outputs = processor.handle(event)
            except EventError:
                continue  # set aside when it was first read
            for output in outputs:
                body = encode_event(output)
                check.expect(
                    Expected(
                        output.event_id, digest(body), partial(bytes, body), str(record), due, output.key
                    )
                )

    # -- batches ------------------------------------------------------------------------------

    async def check_batches(self) -> None:
        """Draw every batch again."""
        batches, membership = self._add_check("updates"), self._add_check("steps used")
        if self._scope.trimmed[Step.TOPIC]:
            reason = "steps that were drawn from are past the topic's retention"
            batches.skipped = membership.skipped = reason
            return
        check = BatchCheck(
            batches,
            membership,
            self._step_index,
            self._scope.config,
            self._scope.run_id,
            self._scope.first_update - 1,
        )
        reader = await TopicReader.open(
            self._log, (Step.TOPIC,), run_id=self._scope.run_id, ends=self._scope.ends[Step.TOPIC]
        )
        named = {str(where): where for where in reader.ends}
        done: set[str] = set()
        try:
            async for record, update in self._events(LearnerUpdate.TOPIC, "drawing batches again"):
                if not isinstance(update, LearnerUpdate) or update.event_id in done:
                    continue
                done.add(update.event_id)
                read_to = {named[name]: offset for name, offset in update.positions.items() if name in named}
                await _add_steps(reader, read_to, check, self._scope.run_id)
                by_partition = {where.partition: offset for where, offset in read_to.items()}
                check.apply(update, by_partition, str(record))
            await _add_steps(reader, reader.ends, check, self._scope.run_id)
        finally:
            await reader.close()
        check.finish()

    # -- files --------------------------------------------------------------------------------

    async def check_files(self) -> None:
        """Compare the checkpoint files there are with their digests."""
        check = self._add_check("checkpoint files")
        async for record, event in self._events(Checkpoint.TOPIC, "reading files"):
            if not isinstance(event, Checkpoint) or event.sha256 is None or event.path is None:
                continue
            weights = weights_of(event)
            if weights is None or not weights.is_file():
                check.gone += 1
                continue
            check.compared += 1
            found = await asyncio.to_thread(file_digest, weights)
            if found != event.sha256:
                check.differs(
                    Difference(
                        str(record),
                        event.event_id,
                        f"{weights} is another file",
                        "$.sha256",
                        event.sha256,
                        found,
                    )
                )


async def _add_steps(reader: TopicReader, read_to: Positions, check: BatchCheck, run_id: str) -> None:
    read: list[PendingStep] = []
    async for record in reader.read_to(read_to):
        event = readable_event(record)
        if isinstance(event, Step) and event.run_id == run_id:
            read.append(PendingStep(event, record.partition, record.offset))
        if len(read) >= _BATCH:
            check.add(read)
            read = []
    check.add(read)


def _body(record: StoredRecord) -> bytes:
    return encode_event(event_from_record(record))
