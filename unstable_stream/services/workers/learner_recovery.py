"""The story of a learner that starts, in order. A first start is a restart with nothing to restore.

1. Fence all earlier learners of this model: its producer is open before anything is read, so nobody else can
   publish for it from here on.
2. List the saves that are there, and read which of them were published. The others can never be: the learner
   removes them after its first transaction.
3. Find the newest checkpoint. Where there is none, publish the initial policy; where that is the newest,
   check that it is the one the run began with.
4. Load weights, optimizer and the state of the sampling transformations from it.
5. Restore what the learner knew there
   (:class:`~unstable_stream.services.workers.learner_state.SavedLearner`). Without
   that, what follows reads the run from its beginning, with the same result.
6. Fold the updates, drops and warnings published since.
7. Train again on the updates that the checkpoint lacks, from their recorded steps and with the settings of
   their time, and compare (:mod:`unstable_stream.services.workers.recorded_updates`).
8. Fold the games that ended up to the last draw. Those after it are the next update's.
9. Read the steps again that were pending at the checkpoint.
10. Publish which steps the log has deleted unused: ``steps`` may have a retention, and an outcome, which says
   which steps follow from its game, is kept as long as its run. A step whose trajectory the reward processor
   has not come to yet, or has quarantined, is none of them. Offsets say nothing about it: on Kafka they have
   gaps.
11. Go on: with the outcomes after the last draw, and the steps after the checkpoint's.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unstable_stream.algorithms import BaseAlgo
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.update_decisions import drawn_ids
from unstable_stream.console import get_logger
from unstable_stream.errors import LearnerError
from unstable_stream.events import (
    Checkpoint,
    DroppedStep,
    Event,
    GameOutcome,
    LearnerUpdate,
    RecordRejected,
    Step,
    StepsDropped,
    Trajectory,
    event_id,
    now_ms,
)
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.log.port import EventLog, Positions, Producer, StoredRecord, TopicPartition
from unstable_stream.log.reading import (
    check_offsets,
    events_to_end,
    read_to_end,
    readable_event,
    settled_ends,
)
from unstable_stream.log.records import id_header, record_from_event
from unstable_stream.log.saved_state import UnusableStateError, check_state
from unstable_stream.log.stores.adapter_format import WEIGHTS_FILE
from unstable_stream.log.stores.address import name_of, owner_of
from unstable_stream.log.stores.checkpoint_files import LEARNER_STATE_FILE, sha256_of
from unstable_stream.reward_transformations import RewardProcessor, SamplingRewardTransform
from unstable_stream.runs.history import read_history
from unstable_stream.runs.recording import initial_checkpoint
from unstable_stream.runs.resume import RecordedConfigs
from unstable_stream.runs.starts import check_whole, recorded_starts, run_events, run_starts
from unstable_stream.services.streams.processor import group_of
from unstable_stream.services.workers.checkpoint_home import CheckpointTidier
from unstable_stream.services.workers.learner_core import computed
from unstable_stream.services.workers.learner_state import LearnerState, SavedLearner, unpack_learner
from unstable_stream.services.workers.recorded_updates import RecordedUpdates, load_training

_DROPS_AT_ONCE: Final = 50_000
"""Dropped steps of one event, about 50 bytes each: far below the size limit of a record."""

_logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """Brings a learner to where the run is."""

    log: EventLog
    producer: Producer
    """The learner's own, fenced (1)."""
    state: LearnerState
    """A new one, which takes in what is known."""
    learner: StandardLearner
    algorithm: BaseAlgo
    """The one that the learner was made with."""
    transform: SamplingRewardTransform
    recorded: RecordedConfigs
    resumption: int | None
    """The start of the run whose configuration this is."""
    tidier: CheckpointTidier
    open: Callable[[Checkpoint], Path]
    """Gives a checkpoint as a directory of this host, for as long as the learner runs."""

    async def run(self) -> tuple[Positions, BaseAlgo]:
        """Return where reading goes on, and the algorithm of the next updates.

        Raises:
            LearnerError: training cannot go on, see the message.
            CheckpointError: the newest checkpoint is damaged or gone.
            ServiceError: a part of the run's history was deleted.
            OffsetOutOfRangeError: the log has lost records that were read.
        """
        state = self.state
        newest = await self._newest_checkpoint()  # 2
        directory: Path | None = None
        saved: SavedLearner | None = None
        if newest is None:
            await self._publish_initial_policy()  # 3
        elif newest.iteration == 0:
            await asyncio.to_thread(self._check_initial_policy, newest)  # 3
        else:
            state.last_checkpoint = newest.iteration
            directory = await asyncio.to_thread(self.open, newest)
            await computed(load_training, self.learner, self.transform, newest, directory)  # 4
            saved = await self._saved(newest, directory)
        known: Positions = {}
        if saved is not None:
            state.restore(saved)  # 5
            known = saved.offsets
        begins = await self._begins()
        starts = later(begins, known)
        steps_from = later(_of(begins, Step.TOPIC), saved.first_needed() if saved else {})
        updates = await self._fold_updates(known, starts, saved)  # 6
        again = [update for update in updates.values() if update.update > self.learner.step]
        algorithm = self.algorithm
        if again:
            algorithm = await self._train_again(again, newest, directory, steps_from)  # 7
        if self.learner.step:
            _logger.info(
                "restored", update=self.learner.step, trained_again=len(again), whole_history=saved is None
            )
        await check_offsets(self.log, state.draw_positions, expiring=True)
        await self._fold_games(known, starts)  # 8
        gone = await self._read_pending(saved, steps_from)  # 9
        await self._record_lost_steps(gone, known, _of(begins, Step.TOPIC))  # 10
        return later(starts, _of(state.draw_positions, GameOutcome.TOPIC)), algorithm  # 11

    # -- the checkpoint -------------------------------------------------------------------------

    async def _newest_checkpoint(self) -> Checkpoint | None:
        newest: Checkpoint | None = None
        published: dict[int, str] = {}
        saves = await asyncio.to_thread(self.tidier.home.attempts)
        topics = (Checkpoint.TOPIC,)
        ends = await settled_ends(self.log, topics)
        # All of them: the directory of one that is not known would be taken for a leftover.
        await check_whole(self.log, self.state.run_id, topics)
        async for _, event in run_events(self.log, topics, self.state.run_id, ends):
            if isinstance(event, Checkpoint) and event.model == self.state.model:
                if newest is None or event.iteration > newest.iteration:
                    newest = event
                if event.path is not None:
                    published.setdefault(event.iteration, name_of(event.path))
        self.tidier.begin(saves, published)
        return newest

    async def _publish_initial_policy(self) -> None:
        config, state = self.state.config, self.state
        probed = config.learner.initial_lora_path is not None
        probe = await computed(self.learner.probe) if probed else None
        event = await asyncio.to_thread(initial_checkpoint, config, state.run_id, state.model, probe)
        await publish(self.producer, [event])

    def _check_initial_policy(self, recorded: Checkpoint) -> None:
        path = self.state.config.learner.initial_lora_path
        found = sha256_of(path, WEIGHTS_FILE) if path else None
        if found != recorded.sha256:
            raise LearnerError(
                f"run {self.state.run_id} began with the weights {recorded.sha256} at {recorded.path}; "
                f"learner.initial_lora_path = {path!r} holds {found}. Put the file back, or start a new run"
            )

    async def _saved(self, checkpoint: Checkpoint, directory: Path) -> SavedLearner | None:
        """Return what a learner of this run knew at a checkpoint; ``None``: the whole history is read."""
        run_id, update = self.state.run_id, checkpoint.iteration
        file = directory / LEARNER_STATE_FILE
        if owner_of(checkpoint.path or "") != run_id or not file.is_file():
            return None  # a fork's first checkpoint is its parent's
        try:
            saved = unpack_learner(await asyncio.to_thread(file.read_bytes), run_id, update)
        except (UnusableStateError, OSError) as error:
            reason = "saved state not used: the whole history is read instead"
            _logger.warning(reason, path=str(file), reason=str(error))
            return None
        try:
            await check_state(self.log, saved)
        except UnusableStateError as error:
            raise LearnerError(
                f"run {run_id}: the learner that saved checkpoint {update} read log {saved.log_id}, and this "
                f"is log {await self.log.log_id()}. Open or restore that log, or begin a new run at the "
                f"checkpoint: unstable-stream fork {run_id} --at {update}"
            ) from error
        return saved

    # -- the log --------------------------------------------------------------------------------

    async def _begins(self) -> Positions:
        """Return the first offsets that may hold events of the run."""
        topics = (Step.TOPIC, GameOutcome.TOPIC, LearnerUpdate.TOPIC, RecordRejected.TOPIC)
        begins: dict[TopicPartition, int] = {}
        for topic in topics:
            begins |= await self.log.beginning_offsets(topic)
        return {**begins, **await run_starts(self.log, self.state.run_id, topics)}

    async def _fold_updates(
        self, known: Positions, starts: Positions, saved: SavedLearner | None
    ) -> Mapping[int, LearnerUpdate]:
        state, topics = self.state, (LearnerUpdate.TOPIC,)
        ends = await settled_ends(self.log, topics)
        await check_whole(self.log, state.run_id, topics, _of(known, LearnerUpdate.TOPIC))
        reading = self._read(LearnerUpdate.TOPIC, starts, ends)
        events = [event async for record in reading if (event := readable_event(record)) is not None]
        updates = state.fold_updates(events, state.last_checkpoint if saved else 0, self.resumption)
        if saved is None:
            state.first_update = min(updates, default=self.learner.step + 1) - 1
        return updates

    async def _train_again(
        self,
        updates: Sequence[LearnerUpdate],
        checkpoint: Checkpoint | None,
        directory: Path | None,
        steps_from: Positions,
    ) -> BaseAlgo:
        """Train on recorded updates; return the algorithm of the next ones."""
        run_id, config = self.state.run_id, self.state.config
        batches = {update.update: drawn_ids(update) for update in updates}
        wanted = {step_id for batch in batches.values() for step_id in batch}
        steps: dict[str, Step] = {}
        async for record in read_to_end(self.log, (Step.TOPIC,), run_id=run_id, starts=steps_from):
            if id_header(record.headers) in wanted:
                step = readable_event(record)
                if isinstance(step, Step):
                    steps.setdefault(step.event_id, step)
        begun = self.learner.step
        fork = f"new run at the last checkpoint: unstable-stream fork {run_id} --at {begun}"
        repeating = RecordedUpdates(self.learner, config, self.recorded, self.transform)
        if directory is not None:
            await computed(repeating.begin, updates[0], self.transform, checkpoint, directory)
        for update in updates:
            batch = batches[update.update]
            gone = [step_id for step_id in batch if step_id not in steps]
            if gone:
                raise LearnerError(
                    f"run {run_id}: update {update.update} cannot be made again: {len(gone)} of its steps "
                    f"are gone from the log (first: {gone[0]}). Begin a {fork}"
                )
            factor = self.state.learning_rate_factor(update.update)
            repeated = await computed(repeating.repeat, update, [steps[name] for name in batch], factor)
            if repeated.differing:
                raise LearnerError(
                    f"run {run_id}: {repeated.problem(update)}. Training stops, since its weights would not "
                    "be those of the record. Resume it with the versions and the code, and on the kind of "
                    f"machine, that recorded the update; or begin a {fork}"
                )
        return await computed(repeating.configure, config)

    async def _fold_games(self, known: Positions, starts: Positions) -> None:
        await check_whole(self.log, self.state.run_id, (GameOutcome.TOPIC,), _of(known, GameOutcome.TOPIC))
        async for record in self._read(GameOutcome.TOPIC, starts, self.state.draw_positions):
            event = readable_event(record)
            if isinstance(event, GameOutcome) and event.run_id == self.state.run_id:
                self.state.finish_game(event)

    async def _read_pending(self, saved: SavedLearner | None, steps_from: Positions) -> list[str]:
        """Fill the buffer as it was after the draw of the checkpoint's update; return the ids that are gone.

        All other steps before the positions of that update were used by then, or came twice.
        """
        if saved is None:
            return []
        missing = dict(saved.pending)
        async for record in self._read(Step.TOPIC, steps_from, saved.offsets):
            if missing.pop(id_header(record.headers), None) is not None:
                self.state.add_steps([record])
        return sorted(missing)

    def _read(self, topic: str, starts: Positions, ends: Positions) -> AsyncGenerator[StoredRecord, None]:
        run_id, starts, ends = self.state.run_id, _of(starts, topic), _of(ends, topic)
        return read_to_end(self.log, (topic,), run_id=run_id, starts=starts, ends=ends)

    async def _record_lost_steps(self, gone: Sequence[str], known: Positions, kept: Positions) -> None:
        """Publish which steps the log has deleted unused: the collector counts all others as pending.

        Args:
            gone: pending steps that the log does not have.
            known: all other steps before it were used.
            kept: the first offsets that the log has. Where they are beyond what is known, the outcomes of all
                games say what is lost.
        """
        state = self.state
        run = (await read_history(self.log)).runs.get(state.run_id)
        begun = recorded_starts(run.began if run else None, await self.log.log_id(), (Step.TOPIC,))
        known = {**begun, **known}
        expired = any(first > known.get(at, 0) for at, first in kept.items())
        lost = await self._lost_steps() if expired else state.buffer.not_used(gone)
        state.buffer.forget(lost)
        if lost:
            _logger.warning("steps expired before they could be trained on", steps=len(lost))
            dropped = [DroppedStep(name, "expired") for name in lost]
            await publish_drops(self.producer, state, self.learner.step + 1, dropped)

    async def _lost_steps(self) -> list[str]:
        """Return the ids of the steps that have expired unused, sorted.

        It reads in this order, so that a step which is on its way is never taken for an expired one:
        outcomes, then the processor's position, then the trajectories after it, and the steps at last.
        """
        state = self.state
        missing: dict[str, list[str]] = {}
        seen = IndexSet()
        topics = (GameOutcome.TOPIC,)
        await check_whole(self.log, state.run_id, topics)
        async with aclosing(run_events(self.log, topics, state.run_id)) as outcomes:
            async for _, event in outcomes:
                if not isinstance(event, GameOutcome) or event.split != "train":
                    continue
                # Of a game that two workers finished, the first outcome counts.
                promised = state.promised(event) if seen.add(event.game_index) else {}
                for trajectory, steps in promised.items():
                    used = state.buffer.used(event.game_index, steps)
                    if len(used) < len(steps):
                        missing[trajectory] = [step for step in steps if step not in used]
        if missing:
            await self._leave_out_unshaped(missing)
        lost = {step for steps in missing.values() for step in steps}
        if lost:
            async with aclosing(await self._settled(Step.TOPIC)) as records:
                async for record in records:
                    lost.discard(id_header(record.headers))
        return sorted(lost)

    async def _leave_out_unshaped(self, missing: dict[str, list[str]]) -> None:
        """Take out the trajectories that the reward processor has not processed yet, or has quarantined."""
        groups = [group_of(RewardProcessor.name, run) for run in (self.state.run_id, None)]
        starts = dict(await self.log.beginning_offsets(Trajectory.TOPIC))
        for group in groups:
            for at, offset in (await self.log.committed_positions(group)).items():
                starts[at] = max(starts.get(at, 0), offset)
        async with aclosing(await self._settled(Trajectory.TOPIC, starts)) as records:
            async for record in records:
                missing.pop(id_header(record.headers), None)
        topics = (RecordRejected.TOPIC,)
        ends = await settled_ends(self.log, topics)
        async with aclosing(events_to_end(self.log, topics, ends=ends)) as rejected:
            async for _, event in rejected:
                if isinstance(event, RecordRejected) and event.consumer in groups:
                    missing.pop(id_header(event.record_headers), None)

    async def _settled(
        self, topic: str, starts: Positions | None = None
    ) -> AsyncGenerator[StoredRecord, None]:
        """Return all records: one behind an open transaction must not be taken for one that has expired."""
        ends = await settled_ends(self.log, (topic,))
        return read_to_end(self.log, (topic,), run_id=self.state.run_id, starts=starts, ends=ends)


async def publish(producer: Producer, events: Sequence[Event]) -> None:
    """Publish events in one transaction."""
    async with producer.transaction() as transaction:
        await transaction.append([record_from_event(event) for event in events])


async def publish_drops(
    producer: Producer, state: LearnerState, update: int, dropped: Sequence[DroppedStep]
) -> None:
    """Publish that steps are dropped before ``update`` is made."""
    events = [
        StepsDropped(
            event_id=event_id(state.run_id, "steps-dropped", update, dropped[first].step_id),
            run_id=state.run_id,
            occurred_at_ms=now_ms(),
            update=update,
            dropped=tuple(dropped[first : first + _DROPS_AT_ONCE]),
            model=state.model,
        )
        for first in range(0, len(dropped), _DROPS_AT_ONCE)
    ]
    await publish(producer, events)


async def promised_steps(log: EventLog, state: LearnerState, trajectories: set[str]) -> dict[int, list[str]]:
    """Return the ids of the steps that outcomes promise of these trajectories, by game index.

    An outcome is appended together with its trajectories, so it is there when a letter about them is. To find
    it, all outcomes of the run are read: a trajectory that cannot be decoded is rare.
    """
    promised: dict[int, list[str]] = {}
    wanted = set(trajectories)
    topics = (GameOutcome.TOPIC,)
    async with aclosing(run_events(log, topics, state.run_id, await settled_ends(log, topics))) as events:
        async for _, event in events:
            if isinstance(event, GameOutcome):
                views = state.promised(event)
                for view in wanted & views.keys():
                    promised.setdefault(event.game_index, []).extend(views[view])
                wanted -= views.keys()  # of a game that two workers finished, the first outcome counts
    return promised


def _of(positions: Positions, topic: str) -> dict[TopicPartition, int]:
    return {at: offset for at, offset in positions.items() if at.topic == topic}


def later(starts: Positions, others: Positions) -> dict[TopicPartition, int]:
    """Return ``starts``, or where they are higher, the others."""
    return {at: max(first, others.get(at, first)) for at, first in starts.items()}
