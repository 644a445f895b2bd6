"""The learner service: consumes steps, trains, publishes updates and checkpoints.

There is one for each trained model of a run (:mod:`unstable_stream.workers.learners`), with a producer, a
consumer and checkpoints of its own. It takes in the steps that its model's checkpoints sampled, and no
others.

One update, in this order. If the process is killed between any two steps, a restart loses nothing and trains
nothing twice:

1. decide: draw the batch from the buffer, a fold of ``steps`` and ``learner-updates``, shape its rewards,
   drop the rest (:mod:`unstable_stream.update_decisions`);
2. train on it;
3. save the checkpoint into a directory of its own: temporary directory, fsync, rename; if checkpoints are in
   a store, upload it (:mod:`unstable_stream.workers.checkpoint_home`);
4. look for signs of a collapse in the metrics of the updates so far (:mod:`unstable_stream.collapse`);
5. publish ``learner-update``, ``checkpoint`` and ``collapse-warning`` events in one transaction of a fenced
   producer.

After a kill before 5, the update never happened: its steps are pending again, and its checkpoint directory,
which no event names, is removed by the next learner after its first transaction. Then it is certain that no
earlier learner can publish it. An earlier learner that is still alive may save, but no directory is ever
replaced, so it harms no published one.

What the learner knew at a checkpoint is beside it (:mod:`unstable_stream.workers.learner_progress`),
so a restart folds only what came later. Without that file it folds the whole history, with the same result.

Updates published since the last checkpoint (``save_every`` above 1) are trained again from their recorded
step ids, without publishing, so that the curve continues: with the settings of their time, and compared with
what was recorded (:mod:`unstable_stream.workers.recorded_updates`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from unstable_stream.adapter_format import WEIGHTS_FILE
from unstable_stream.buffer import StepBuffer
from unstable_stream.collapse import CollapseWatch, GameTally, Sign
from unstable_stream.errors import CheckpointError, EventLogError, FencedError, LearnerError, StoreError
from unstable_stream.events import (
    Checkpoint,
    CollapseWarning,
    DroppedStep,
    Event,
    GameOutcome,
    LearnerUpdate,
    RecordRejected,
    Step,
    StepsDropped,
    checkpoint_uid,
    named_id,
    trained_model,
)
from unstable_stream.events.used_ids import UsedIds
from unstable_stream.learners import UpdateResult, saved_model
from unstable_stream.log.port import Consumer, EventLog, Positions, Producer, StoredRecord, TopicPartition
from unstable_stream.log.reading import (
    check_offsets,
    of_run,
    read_to_end,
    readable_event,
    readable_events,
    settled_ends,
)
from unstable_stream.log.records import id_header, record_from_event
from unstable_stream.log_lines import get_logger
from unstable_stream.reward_transformations import build_sampling, expected_step_ids
from unstable_stream.reward_transformations.transform import Untold
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import Share
from unstable_stream.runs.recording import initial_checkpoint
from unstable_stream.runs.resume import RecordedConfigs
from unstable_stream.runs.starts import check_whole, run_events, run_starts
from unstable_stream.stores import name_of, opened_checkpoint, sha256_of
from unstable_stream.update_decisions import (
    UpdateDecision,
    decide_update,
    drawn_ids,
)
from unstable_stream.workers.checkpoint_home import StoredHome, home_of
from unstable_stream.workers.learner_core import build_training_algorithm
from unstable_stream.workers.learner_progress import (
    LearnerProgress,
    StepPlace,
    by_partition,
    read_progress,
    write_progress,
)
from unstable_stream.workers.learner_ranks import Learner, LearnerGroup, build_learners
from unstable_stream.workers.lost_steps import drop_events, lost_steps
from unstable_stream.workers.recorded_updates import RecordedUpdates, load_training
from unstable_stream.workers.store_report import report_store_wait
from unstable_stream.workers.unreadable import UNREADABLE, promised_steps, unreadable_trajectories

__all__ = ["LearnerService"]

_OF_A_MODEL: Final = (LearnerUpdate, StepsDropped, CollapseWarning)
T = TypeVar("T")

_POLL_S = 1.0
_KEPT_FOR_FORKS: Final = 10
"""The checkpoint of every update that is a multiple of this keeps its optimizer state."""
_logger = get_logger(__name__)


class _Reading(NamedTuple):
    """The open ends of the log that a learner works with."""

    log: EventLog
    consumer: Consumer
    """Of steps and outcomes."""
    letters: Consumer
    """Of dead letters."""
    producer: Producer


class LearnerService:
    """The learner of one trained model: the training core, the buffer, and the log around them."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        data: DataDir,
        model_path: str,
        share: Share | None = None,
        *,
        plays: bool = True,
        model: str | None = None,
        beside: "LearnerService | None" = None,
    ) -> None:
        """Load the base model onto the learner's ``share`` of the GPUs; ``None``: a GPU of its own, if any.

        Args:
            config: of the run.
            run_id: the run.
            data: where the checkpoints go.
            model_path: the base model.
            share: what it may use.
            plays: false for a run that trains on replayed steps: no outcomes tell when a game is done with.
            model: name of the trained model; ``None``: the only one of the run.
            beside: the service of another trained model in this process, with which it shares the base model
                and takes turns at computing; ``None``: it is the first.
        """
        config = config.for_model(model)
        self._config = config
        self._run_id = run_id
        self._model = model
        self._turn: asyncio.Lock = beside._turn if beside else asyncio.Lock()
        """Held while it computes: all services of a process share its random generators and other ranks."""
        self._algorithm = build_training_algorithm(config)
        self._home = home_of(config, run_id, data)
        self._learner: Learner = build_learners(
            config,
            self._algorithm,
            self._home,
            data.checkpoints(run_id),
            model_path,
            share,
            beside=beside._learner if beside else None,
        )
        self._buffer = StepBuffer(
            config.max_buffer_size,
            strategy=config.buffer.strategy,
            seed=config.seed,
            max_staleness=config.buffer.max_staleness,
            overflow_draws=config.buffer.overflow_draws,
            by_game=plays,
        )
        self._data = data
        self._log_id = ""
        self._recorded = RecordedConfigs({})
        self._resumption: int | None = None
        """The start of the run whose configuration this is."""
        self._places: dict[str, StepPlace] = {}
        """By id, where the pending steps are in the log."""
        self._updates_from: dict[str, int] = {}
        """The next offsets of ``learner-updates``, before the present update."""
        self._letters_read: Mapping[str, int] = {}
        """The next offsets of ``dead-letters``."""
        self._watched = 0
        """The last update that the watch knows."""
        self._transform = build_sampling(list(config.rewards.sampling))
        self._untold: Untold | None = Untold(self._transform)
        self._opened = ExitStack()
        """Keeps the checkpoint that the service began from: other ranks may read it after this one."""
        self._parent = checkpoint_uid(0, model)
        self._saved = 0
        """The newest published checkpoint."""
        self._full: list[str] = []
        """Names of published checkpoints that may still have their optimizer states, oldest first; empty if
        all keep them.
        """
        self._leftovers: list[str] = []
        """Names of saves of earlier learners that no event names; see :meth:`_tidy`."""
        self._positions: Mapping[str, int] = {}
        """Offsets up to which the last update had read."""
        self._counted: Mapping[str, int] = {}
        """Offsets of the outcomes that an update before the start has counted."""
        self._first_update = 0
        """The update after which the run begins: 0, or that of its parent at the fork."""
        self._idle = False
        self._loaded: tuple[Checkpoint, Path] | None = None
        """Whether the last update had no turn to train on."""
        self._tally = GameTally(model)
        self._watch = CollapseWatch()
        self._warnings: list[CollapseWarning] = []
        """All warnings, in order."""

    def close(self) -> None:
        """End the other learners, if there are several; the service cannot be used afterwards."""
        self._opened.close()
        if isinstance(self._learner, LearnerGroup):
            self._learner.close()

    async def train(self, log: EventLog, stop: asyncio.Event) -> int:
        """Make updates until the configured number is reached or ``stop`` is set; return the number of
        updates.

        Raises:
            LearnerError: training cannot go on, see the message.
            OffsetOutOfRangeError: the log has lost records that were read.
            FencedError: another learner of this model has taken over.
        """
        self._log_id = await log.log_id()
        self._recorded = await RecordedConfigs.read(log, self._run_id)
        self._resumption = self._recorded.number_of(self._config, self._model)
        of_model = "" if self._model is None else f"/{self._model}"
        producer = await log.producer(f"learner/{self._run_id}{of_model}")
        consumer = await log.consumer([Step.TOPIC, GameOutcome.TOPIC])
        # Apart from the consumer, whose positions are recorded in updates.
        letters = await log.consumer([RecordRejected.TOPIC])
        telling = None
        if isinstance(self._home, StoredHome):
            telling = asyncio.ensure_future(
                report_store_wait(log, self._run_id, f"learner{of_model}".replace("/", "-"))
            )
        try:
            async with self._turn:
                starts = await self._restore(log, producer)
            await consumer.seek(starts)
            starts_of_letters = await run_starts(log, self._run_id, (RecordRejected.TOPIC,))
            await letters.seek(_later(starts_of_letters, self._letters_read))
            settings = self._config.learner
            needed = int(settings.batch_size * settings.batch_delay_buffer)
            while self._learner.step < settings.iterations:
                reading = _Reading(log, consumer, letters, producer)
                if not await self._collect(reading, needed, stop):
                    break
                await self._note_updates(log)
                async with self._turn:
                    update, checkpoint = await self._update(consumer.positions())
                self._watched = update.update
                warnings = [self._warning(sign) for sign in self._watch.apply(update.update, update.metrics)]
                async with producer.transaction() as transaction:
                    events: list[Event] = [update, *warnings]
                    if checkpoint is not None:
                        events.append(checkpoint)
                    await transaction.append([record_from_event(event) for event in events])
                self._warnings += warnings
                await self._tidy(checkpoint)
                if any(warning.action == "stop" for warning in warnings):
                    break  # the launcher reads the warning too, and stops the run
            await self._note_updates(log)
            await self._publish_last(producer, consumer.positions())
            return self._learner.step
        except CheckpointError as error:
            await self._explain_if_fenced(producer, error)
            raise
        finally:
            if telling is not None:
                telling.cancel()
                await asyncio.wait([telling])
            await consumer.close()
            await letters.close()
            await producer.close()

    async def _explain_if_fenced(self, producer: Producer, error: CheckpointError) -> None:
        """Raise :class:`FencedError` if another learner has taken over.

        That one removes what this one was about to publish, and prunes states that it reads: then a file that
        is missing here says nothing of the disk.
        """
        try:
            async with producer.transaction() as transaction:
                # A transaction of something, since brokers are not asked about an empty one.
                await transaction.save(f"learner/{self._run_id}", {"taken-over": b""})
        except FencedError as fenced:
            raise FencedError(
                f"another learner of run {self._run_id} has taken over, and this one stops: {error}"
            ) from fenced
        except EventLogError as unknown:
            _logger.warning("cannot tell whether another learner has taken over", reason=str(unknown))

    async def _publish_last(self, producer: Producer, read: Positions) -> None:
        """Publish the weights of the last update if ``save_every`` left them out.

        A resume then trains nothing again, for which steps may be gone from the log; and one that wants no
        more updates has its last checkpoint.

        Args:
            producer: that of the learner.
            read: how far the learner has read. One that is stopped soon after a restart may not have come
                to the last draw again. Then its buffer lacks steps, and what it knows is not saved.
        """
        if self._learner.step == self._saved:
            return
        reached = {str(at): offset for at, offset in read.items()}
        knows = all(reached.get(name, 0) >= offset for name, offset in self._positions.items())
        async with self._turn:
            checkpoint = await self._save(self._learner.step, self._positions, _now_ms(), knows=knows)
        async with producer.transaction() as transaction:
            await transaction.append([record_from_event(checkpoint)])
        await self._tidy(checkpoint)

    async def _tidy(self, published: Checkpoint | None) -> None:
        """Delete what is not needed any more; call it only after a transaction.

        A run cannot be resumed from an unpublished checkpoint, so the states of older ones go only then. The
        leftovers were listed after this learner had fenced all earlier ones, and before it read which of them
        were published. That the transaction succeeded shows that no later learner had begun by then: so
        nobody has published them since, or can.
        """
        leftovers, self._leftovers = self._leftovers, []
        if published is not None and published.path is not None and published.iteration % _KEPT_FOR_FORKS:
            self._full.append(name_of(published.path))
        keep = self._config.learner.keep_optimizer_states
        try:
            removed = await asyncio.to_thread(self._home.remove, leftovers)
            if removed:
                _logger.info("unpublished checkpoints removed", directories=removed)
            if isinstance(keep, int):
                await asyncio.to_thread(self._home.prune, self._full, keep_last=keep)
                self._full = self._full[-keep:]
        except StoreError as error:
            # What was published is safe. The rest is looked for again when the learner starts.
            _logger.warning("what is not needed any more was left in the store", reason=str(error))

    def _open(self, checkpoint: Checkpoint) -> Path:
        assert checkpoint.path is not None
        opened = opened_checkpoint(self._data.located(checkpoint.path), checkpoint.sha256, to_train=True)
        return self._opened.enter_context(opened)

    # -- restoring ----------------------------------------------------------------------------

    async def _note_updates(self, log: EventLog) -> None:
        ends = await log.end_offsets(LearnerUpdate.TOPIC)
        self._updates_from = {str(at): offset for at, offset in ends.items()}

    async def _restore(self, log: EventLog, producer: Producer) -> Positions:
        """Return where the steps and outcomes that have not been folded yet begin."""
        newest: Checkpoint | None = None
        published: dict[int, str] = {}
        found = await asyncio.to_thread(self._home.attempts)
        topics = (Checkpoint.TOPIC,)
        ends = await settled_ends(log, topics)
        # All of them: the directory of one that is not known would be taken for a leftover.
        await check_whole(log, self._run_id, topics)
        async for _, event in run_events(log, topics, self._run_id, ends):
            if isinstance(event, Checkpoint) and event.model == self._model:
                if newest is None or event.iteration > newest.iteration:
                    newest = event
                if event.path is not None:
                    published.setdefault(event.iteration, name_of(event.path))
        # By name, because a data directory may have been moved since, or be reached by another path.
        known = set(published.values())
        self._leftovers = [name for name in found if name not in known and saved_model(name) == self._model]
        if isinstance(self._config.learner.keep_optimizer_states, int):
            self._full = [published[number] for number in sorted(published) if number % _KEPT_FOR_FORKS]
        progress = None
        if newest is None:
            await self._publish_initial_policy(producer)
        else:
            self._parent = newest.model_uid
            self._saved = newest.iteration
            if newest.iteration > 0:
                assert newest.path is not None, "only the initial policy is without weights"
                directory = await asyncio.to_thread(self._open, newest)
                await _computed(load_training, self._learner, self._transform, newest, directory)
                self._loaded = newest, directory
                progress = read_progress(directory, self._run_id, newest.iteration)
                if progress is not None:
                    await progress.check(log)
            else:
                await asyncio.to_thread(self._check_initial_policy, newest)
        return await self._fold(log, producer, progress)

    async def _fold(
        self, log: EventLog, producer: Producer, progress: LearnerProgress | None
    ) -> dict[TopicPartition, int]:
        """Fold the history, or that after ``progress``; return where the consumer begins."""
        starts = await self._starts(log, Step.TOPIC)
        outcomes = await self._starts(log, GameOutcome.TOPIC)
        warnings: dict[str, CollapseWarning] = {}
        if progress is not None:
            self._buffer.restore_used(UsedIds.restored(progress.used))
            self._watch.restore(progress.watch)
            self._watched, self._first_update = progress.watched, progress.first_update
            self._positions, self._letters_read = progress.positions, progress.letters
            warnings = {warning.event_id: warning for warning in progress.warnings}
            needed = progress.first_needed(Step.TOPIC)
            starts_of_needed = {at: max(first, needed.get(at, first)) for at, first in starts.items()}
        else:
            starts_of_needed = starts
        updates: dict[int, LearnerUpdate] = {}
        topics = (LearnerUpdate.TOPIC,)
        ends = await settled_ends(log, topics)
        updates_from = {} if progress is None else progress.updates_from
        known = {at: updates_from[str(at)] for at in ends if str(at) in updates_from}
        await check_whole(log, self._run_id, topics, known)
        updates_at = _later(await self._starts(log, LearnerUpdate.TOPIC), updates_from)
        async for record in read_to_end(log, topics, run_id=self._run_id, starts=updates_at, ends=ends):
            event = readable_event(record)
            if event is None or event.run_id != self._run_id:
                continue
            if not isinstance(event, _OF_A_MODEL) or event.model != self._model:
                continue
            if isinstance(event, LearnerUpdate):
                updates.setdefault(event.update, event)
            elif isinstance(event, StepsDropped):
                self._buffer.forget(drop.step_id for drop in event.dropped)
            elif isinstance(event, CollapseWarning):
                warnings[event.event_id] = event
        self._warnings = sorted(warnings.values(), key=lambda warning: warning.update)
        if progress is None:
            self._first_update = min(updates, default=self._learner.step + 1) - 1
        for number in sorted(updates):
            if progress is None or number > progress.update:
                self._buffer.apply(updates[number])
            if number > self._watched:
                self._watch.apply(number, updates[number].metrics)
                self._watched = number
        missing = [number for number in sorted(updates) if number > self._learner.step]
        if missing:
            await self._train_again(log, [updates[number] for number in missing], starts_of_needed)
        if self._learner.step:
            _logger.info(
                "restored",
                update=self._learner.step,
                trained_again=len(missing),
                whole_history=progress is None,
            )
        if updates:
            last = updates[max(updates)]
            self._positions = last.positions
            await check_offsets(log, by_partition(last.positions), expiring=True)
            # Only of this start: a resumption may have other limits, and draws old steps first.
            made_by_us = last.resumption is not None and last.resumption == self._resumption
            self._idle = made_by_us and last.metrics.get("optimizer_steps") == 0
        if progress is None:
            self._counted = self._positions
            await self._finish_games(log)
            await self._record_lost_steps(log, producer, None)
            return {**starts, **_later(outcomes, self._positions)}
        self._counted = self._positions
        gone = await self._read_pending(log, progress, starts_of_needed)
        whole = any(first > progress.positions.get(str(at), 0) for at, first in starts.items())
        await self._record_lost_steps(log, producer, None if whole else gone)
        return {**_later(starts, progress.positions), **_later(outcomes, progress.positions)}

    async def _starts(self, log: EventLog, topic: str) -> dict[TopicPartition, int]:
        """Return the first offsets that may hold events of the run."""
        return {**await log.beginning_offsets(topic), **await run_starts(log, self._run_id, (topic,))}

    async def _finish_games(self, log: EventLog) -> None:
        topics = (GameOutcome.TOPIC,)
        await check_whole(log, self._run_id, topics)
        async for _, event in run_events(log, topics, self._run_id):
            if isinstance(event, GameOutcome):
                self._finish_game(event)

    def _finish_game(self, outcome: GameOutcome) -> None:
        if outcome.split == "train":
            filtering = self._config.collector.filter_opponent_invalid
            views = expected_step_ids(outcome, filter_opponent_invalid=filtering, model=self._model).values()
            self._buffer.finish_game(outcome.game_index, [step for steps in views for step in steps])

    async def _read_pending(self, log: EventLog, progress: LearnerProgress, starts: Positions) -> list[str]:
        """Fill the buffer as it was after the draw of the checkpoint's update; return the ids that are gone.

        All other steps before the positions of that update were used by then, or came twice.
        """
        missing = dict(progress.pending)
        ends = {at: max(progress.positions.get(str(at), 0), first) for at, first in starts.items()}
        async for record in read_to_end(log, (Step.TOPIC,), run_id=self._run_id, starts=starts, ends=ends):
            name = id_header(record.headers)
            if name in missing:
                del missing[name]
                self._add_steps([record])
        return sorted(missing)

    def _add_steps(self, records: Sequence[StoredRecord]) -> None:
        steps = []
        for record in records:
            event = readable_event(record)
            if not isinstance(event, Step) or event.run_id != self._run_id:
                continue
            if trained_model(event.model_uid) == self._model:
                steps.append(event)
                if self._buffer.used_ids.by_game:
                    self._places.setdefault(event.event_id, StepPlace(record.partition, record.offset))
        self._buffer.extend(steps)

    async def _record_lost_steps(self, log: EventLog, producer: Producer, gone: list[str] | None) -> None:
        """Publish which steps the log has deleted unused: the collector counts all others as pending.

        ``gone`` are all that can be among them; ``None``: find out from the outcomes of all games.
        """
        if gone is None:
            lost = await lost_steps(
                log,
                self._run_id,
                filter_opponent_invalid=self._config.collector.filter_opponent_invalid,
                model=self._model,
                used=self._buffer.used,
            )
        else:
            lost = self._buffer.not_used(gone)
        self._buffer.forget(lost)
        if not lost:
            return
        _logger.warning("steps expired before they could be trained on", steps=len(lost))
        dropped = [DroppedStep(name, "expired") for name in lost]
        await self._publish_drops(producer, self._learner.step + 1, dropped)

    async def _publish_initial_policy(self, producer: Producer) -> None:
        probed = self._config.learner.initial_lora_path is not None
        probe = await _computed(self._learner.probe) if probed else None
        event = await asyncio.to_thread(initial_checkpoint, self._config, self._run_id, self._model, probe)
        async with producer.transaction() as transaction:
            await transaction.append([record_from_event(event)])

    def _check_initial_policy(self, recorded: Checkpoint) -> None:
        """Compare the adapter that training begins from with the one that the run began with."""
        path = self._config.learner.initial_lora_path
        found = sha256_of(path, WEIGHTS_FILE) if path else None
        if found != recorded.sha256:
            raise LearnerError(
                f"run {self._run_id} began with the weights {recorded.sha256} at {recorded.path}; "
                f"learner.initial_lora_path = {path!r} holds {found}. Put the file back, or start a new run"
            )

    def _lora(self) -> dict[str, Any]:
        config = self._config
        return {} if config.learner.parameters == "all" else config.lora.model_dump(mode="json")

    async def _train_again(self, log: EventLog, updates: Sequence[LearnerUpdate], starts: Positions) -> None:
        batches = {update.update: drawn_ids(update) for update in updates}
        wanted = {step_id for batch in batches.values() for step_id in batch}
        steps: dict[str, Step] = {}
        async for record in read_to_end(log, (Step.TOPIC,), run_id=self._run_id, starts=starts):
            if id_header(record.headers) in wanted:
                step = readable_event(record)
                if isinstance(step, Step):
                    steps.setdefault(step.event_id, step)
        begun = self._learner.step
        repeating = RecordedUpdates(
            self._learner, self._algorithm, self._config, self._recorded, self._transform
        )
        if self._loaded is not None and updates:
            await _computed(repeating.begin, updates[0], self._transform, *self._loaded)
        for update in updates:
            batch = batches[update.update]
            lost = [step_id for step_id in batch if step_id not in steps]
            if lost:
                raise LearnerError(
                    f"run {self._run_id}: update {update.update} cannot be made again: {len(lost)} of "
                    f"its steps are gone from the log (first: {lost[0]}). Begin a new run at the last "
                    f"checkpoint: unstable-stream fork {self._run_id} --at {begun}"
                )
            drawn = [steps[step_id] for step_id in batch]
            repeated = await _computed(repeating.repeat, update, drawn, self._rate_factor(update.update))
            if repeated.differing:
                raise LearnerError(
                    f"run {self._run_id}: {repeated.problem(update)}. Training stops, since its weights "
                    "would not be those of the record. Resume it with the versions and the code, and on the "
                    "kind of machine, that recorded the update; or begin a new run at the last checkpoint: "
                    f"unstable-stream fork {self._run_id} --at {begun}"
                )
        self._algorithm = await _computed(repeating.configure, self._config)

    # -- one update ---------------------------------------------------------------------------

    async def _collect(self, reading: _Reading, needed: int, stop: asyncio.Event) -> bool:
        """Read steps until a batch can be drawn; return ``False`` if ``stop`` came first.

        If stale steps alone fill the bound at which no game starts, they are dropped at once: the next update
        would come too late to do it.
        """
        number = self._learner.step + 1
        while not stop.is_set():
            await self._drop_unreadable(reading, number)
            available = self._buffer.available(number)
            if available >= needed:
                return True
            # At the back-pressure bound no game starts, so waiting for more fresh steps would never end.
            if available and self._buffer.size() >= self._config.max_pending_steps:
                return True
            if self._buffer.size() >= self._config.max_pending_steps:
                await self._drop_stale(reading.producer, number)
            records = of_run(await reading.consumer.poll(max_records=5000, timeout_s=_POLL_S), self._run_id)
            self._add_steps([record for record in records if record.topic == Step.TOPIC])
            for record in records:
                event = readable_event(record) if record.topic == GameOutcome.TOPIC else None
                if isinstance(event, GameOutcome) and event.run_id == self._run_id:
                    self._finish_game(event)
                    at = TopicPartition(record.topic, record.partition)
                    if record.offset >= self._counted.get(str(at), 0):
                        self._tally.add(event)
        return False

    async def _drop_stale(self, producer: Producer, number: int) -> None:
        bound = self._config.buffer.max_staleness
        if bound is not None and self._saved < number - 1 - bound:
            raise LearnerError(
                f"run {self._run_id}: the newest checkpoint, {self._saved}, is staler than "
                f"buffer.max_staleness = {bound} allows for update {number}; raise it, or lower "
                "learner.save_every"
            )
        dropped = self._buffer.drop(number)
        _logger.warning(
            "all pending steps are too stale and are dropped: raise buffer.max_staleness to train on them",
            steps=len(dropped),
            max_staleness=self._config.buffer.max_staleness,
        )
        await self._publish_drops(producer, number, dropped)

    async def _drop_unreadable(self, reading: _Reading, number: int) -> None:
        """Record the steps as dropped that never come, because their trajectories cannot be decoded."""
        if not self._buffer.used_ids.by_game:
            return
        events = readable_events(await reading.letters.poll(max_records=1000, timeout_s=0))
        letters = [event for event in events if isinstance(event, RecordRejected)]
        # If what follows fails, nothing is saved any more.
        self._letters_read = {str(at): offset for at, offset in reading.letters.positions().items()}
        trajectories = unreadable_trajectories(letters, self._run_id)
        if not trajectories:
            return
        games = await promised_steps(
            reading.log,
            self._run_id,
            trajectories,
            filter_opponent_invalid=self._config.collector.filter_opponent_invalid,
            model=self._model,
        )
        lost: list[str] = []
        for index, steps in games.items():
            used = self._buffer.used(index, steps)
            lost += [step for step in steps if step not in used]
        if lost:
            self._buffer.forget(lost)
            _logger.warning("trajectories cannot be decoded: their steps are dropped", steps=len(lost))
            dropped = [DroppedStep(step, UNREADABLE) for step in sorted(lost)]
            await self._publish_drops(reading.producer, number, dropped)

    async def _publish_drops(self, producer: Producer, number: int, dropped: Sequence[DroppedStep]) -> None:
        events = drop_events(self._run_id, number, dropped, _now_ms(), self._model)
        async with producer.transaction() as transaction:
            await transaction.append([record_from_event(event) for event in events])

    def _event_id(self, kind: str, *natural_key: object) -> str:
        return named_id(self._run_id, kind, *natural_key, model=self._model)

    def _rate_factor(self, update: int) -> float:
        """Return what the warnings before an update have left of its learning rate."""
        lowered = [each.learning_rate_factor for each in self._warnings if each.update < update]
        return lowered[-1] if lowered else 1.0

    def _train(self, decision: UpdateDecision, update: int) -> tuple[UpdateResult, dict[str, str]]:
        result = self._learner.update(
            decision.samples,
            update,
            decision.admissions,
            learning_rate_factor=self._rate_factor(update),
        )
        return result, self._learner.computed_with()

    def _warning(self, sign: Sign) -> CollapseWarning:
        settings = self._config.learner
        factor = self._warnings[-1].learning_rate_factor if self._warnings else 1.0
        saved = (sign.began - 1) // settings.save_every * settings.save_every
        return CollapseWarning(
            event_id=self._event_id("collapse-warning", sign.update, sign.signal),
            run_id=self._run_id,
            occurred_at_ms=_now_ms(),
            update=sign.update,
            began=sign.began,
            fork_at=max(self._first_update, saved),
            rule=sign.rule,
            signal=sign.signal,
            value=sign.value,
            reference=sign.reference,
            text=sign.text if self._model is None else f"{self._model}: {sign.text}",
            action=settings.on_collapse,
            learning_rate_factor=factor / 2 if settings.on_collapse == "lower-step" else factor,
            model=self._model,
        )

    async def _update(self, positions: Positions) -> tuple[LearnerUpdate, Checkpoint | None]:
        settings = self._config.learner
        number = self._learner.step + 1
        started = time.monotonic()
        decision = decide_update(
            self._buffer, settings.batch_size, number, self._transform, self._algorithm.admit
        )
        self._check_trains(decision, number)
        named = {str(partition): offset for partition, offset in sorted(positions.items())}
        result, computed_with = await _computed(self._train, decision, number)
        now = _now_ms()
        saves = number % settings.save_every == 0 or number == settings.iterations
        checkpoint = await self._save(number, named, now) if saves else None
        self._positions = named
        update = LearnerUpdate(
            event_id=self._event_id("learner-update", number),
            run_id=self._run_id,
            occurred_at_ms=now,
            update=number,
            step_ids=decision.trained_ids,
            dropped=decision.dropped,
            loss=result.loss,
            metrics={
                **result.metrics,
                **decision.metrics,
                **self._tally.take(),
                "samples_seen": float(self._learner.samples_seen),
            },
            model_uid=checkpoint.model_uid if checkpoint else None,
            positions=named,
            duration_ms=(time.monotonic() - started) * 1000,
            model=self._model,
            resumption=self._resumption,
            computed_with=computed_with,
        )
        return update, checkpoint

    def _check_trains(self, decision: UpdateDecision, number: int) -> None:
        """Warn of an update that can take no optimizer step; a second in a row raises ``LearnerError``."""
        before, self._idle = self._idle, "train" not in decision.admissions
        if not self._idle:
            return
        config = self._config
        masked = decision.admissions.count("mask")
        said = (
            f"update {number} has no turn to train on: of {len(decision.admissions)}, {masked} are masked "
            f"and {len(decision.admissions) - masked} dropped. Their answers were cut at "
            f"sampling.max_tokens = {config.sampling.max_tokens} before an action was found "
            "(algorithm.truncated_turns), or have no token, or their prompts fill "
            f"learner.max_train_len = {config.learner.max_train_len}"
        )
        if before:
            raise LearnerError(
                f"run {self._run_id}: {said}. The update before it had none either, so nothing is learned: "
                'raise these limits, or begin a run with algorithm.truncated_turns = "train"'
            )
        _logger.warning(f"{said}; a second such update in a row ends the run")

    async def _save(
        self, number: int, positions: Mapping[str, int], now_ms: int, *, knows: bool = True
    ) -> Checkpoint:
        """Save the weights after update ``number``; the caller publishes the event.

        ``knows``: the buffer has all steps up to ``positions``, so that a restart may go on from it.
        """
        self._warn_of_untold()
        with self._home.saving() as root:
            info = await _computed(
                self._learner.save,
                positions=positions,
                sampling=self._transform.state(),
                root=root,
                model=self._model,
            )
            if knows and self._buffer.used_ids.by_game:
                progress = self._progress(number, positions)
                await asyncio.to_thread(write_progress, Path(info.path), progress)
            path = await asyncio.to_thread(self._home.publish, Path(info.path))
        probe = await _computed(self._learner.probe)
        checkpoint = Checkpoint(
            event_id=self._event_id("checkpoint", number),
            run_id=self._run_id,
            occurred_at_ms=now_ms,
            model_uid=checkpoint_uid(number, self._model),
            iteration=number,
            path=path,
            sha256=info.sha256,
            size_bytes=info.size_bytes,
            base_model=self._config.model,
            parameters=self._config.learner.parameters,
            lora=self._lora(),
            parent_uid=self._parent,
            probe=probe,
            model=self._model,
        )
        self._parent = checkpoint.model_uid
        self._saved = number
        return checkpoint

    def _warn_of_untold(self) -> None:
        if self._untold is None:
            return
        try:
            self._untold.check()
        except ValueError as error:
            _logger.warning("a restart would not give the same advantages", reason=str(error))
            self._untold = None

    def _progress(self, number: int, positions: Mapping[str, int]) -> LearnerProgress:
        pending = [step.event_id for step in self._buffer.pending()]
        self._places = {name: self._places[name] for name in pending}
        return LearnerProgress(
            run_id=self._run_id,
            log_id=self._log_id,
            update=number,
            first_update=self._first_update,
            positions=dict(positions),
            updates_from=self._updates_from,
            # Steps that came after the draw are read again.
            pending={
                name: place
                for name, place in self._places.items()
                if place.offset < positions.get(f"{Step.TOPIC}[{place.partition}]", 0)
            },
            used=self._buffer.used_ids.state(),
            watched=self._watched,
            watch=self._watch.state(),
            warnings=tuple(self._warnings),
            letters=dict(self._letters_read),
        )


def _later(offsets: Positions, named: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Return ``offsets``, or where they are higher, those under the partition's name."""
    return {at: max(first, named.get(str(at), first)) for at, first in offsets.items()}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _computed(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Compute in a thread; a cancellation is raised when it has ended.

    Until then it uses PyTorch's random generators, which belong to whoever computes in this process next.
    """
    computing = asyncio.ensure_future(asyncio.to_thread(work, *arguments, **named))
    try:
        return await asyncio.shield(computing)
    except asyncio.CancelledError:
        while not computing.done():
            with suppress(asyncio.CancelledError):  # a second one changes nothing: the first is raised below
                await asyncio.wait([computing])
        computing.exception()  # retrieved: the cancellation stands for it
        raise
