"""The learner service: consumes steps, trains, publishes updates and checkpoints.

There is one for each trained model of a run (:class:`Learners`), with a producer, a consumer and checkpoints
of its own. It takes in the steps that its model's checkpoints sampled, and no others. What it knows is a
:class:`~unstable_stream.services.workers.learner_state.LearnerState`; how it starts again is in
:mod:`unstable_stream.services.workers.learner_recovery`.

One update, in this order, with the numbers at the lines below. If the process is killed between any two
steps, a restart loses nothing and trains nothing twice:

1. decide: draw the batch from the buffer, a fold of ``steps`` and ``learner-updates``, shape its rewards,
   drop the rest (:mod:`unstable_stream.algorithms.update_decisions`);
2. train on it;
3. save the checkpoint into a directory of its own: temporary directory, fsync, rename; if checkpoints are in
   a store, upload it (:mod:`unstable_stream.services.workers.checkpoint_home`);
4. look for signs of a collapse in the metrics of the updates so far
   (:mod:`unstable_stream.algorithms.collapse`);
5. publish ``learner-update``, ``checkpoint`` and ``collapse-warning`` events in one transaction of a fenced
   producer;
6. delete what is not needed any more.

After a kill before 5, the update never happened: its steps are pending again, and its checkpoint directory,
which no event names, is removed by the next learner after its first transaction. Then it is certain that no
earlier learner can publish it. An earlier learner that is still alive may save, but no directory is ever
replaced, so it harms no published one.
"""

import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from unstable_stream.algorithms.learners.settings import UpdateResult
from unstable_stream.algorithms.learners.standard_learner import StandardLearner
from unstable_stream.algorithms.update_decisions import UpdateDecision, decide_update
from unstable_stream.console import get_logger
from unstable_stream.errors import CheckpointError, EventLogError, FencedError
from unstable_stream.events import (
    UNREADABLE,
    Checkpoint,
    DroppedStep,
    Event,
    GameOutcome,
    LearnerUpdate,
    RecordRejected,
    Step,
    checkpoint_uid,
    now_ms,
)
from unstable_stream.log.port import Consumer, EventLog, Positions, Producer
from unstable_stream.log.reading import of_run, readable_events
from unstable_stream.log.saved_state import pack_state
from unstable_stream.log.stores.checkpoint_files import LEARNER_STATE_FILE, opened_checkpoint
from unstable_stream.log.stores.store import store_wait_s
from unstable_stream.reward_transformations import build_sampling
from unstable_stream.reward_transformations.transform import UnsavableState
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.data_dir import DataDir
from unstable_stream.runs.placement import Share
from unstable_stream.runs.resume import RecordedConfigs
from unstable_stream.services.streams.reports import Reporter
from unstable_stream.services.workers.checkpoint_home import (
    CheckpointTidier,
    StoredHome,
    home_of,
)
from unstable_stream.services.workers.learner_core import (
    LearnerGroup,
    build_learners,
    build_training_algorithm,
    computed,
)
from unstable_stream.services.workers.learner_recovery import Recovery, promised_steps, publish, publish_drops
from unstable_stream.services.workers.learner_state import LearnerState, SavedLearner

_POLL_S: Final = 1.0

_logger = get_logger(__name__)


class _Ends(NamedTuple):
    """The open ends of the log that a learner works with."""

    log: EventLog
    consumer: Consumer
    """Of steps and outcomes: its positions are recorded in updates."""
    dead_letters: Consumer
    producer: Producer
    resumption: int | None
    """The start of the run whose configuration this is."""


class LearnerService:
    """The learner of one trained model: the training core, its state, and the log around them."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        data: DataDir,
        model_path: str,
        share: Share | None = None,
        *,
        has_games: bool = True,
        model: str | None = None,
        shares_base_with: "LearnerService | None" = None,
    ) -> None:
        """Load the base model onto the learner's ``share`` of the GPUs; ``None``: a GPU of its own, if any.

        Args:
            config: of the run.
            run_id: the run.
            data: where the checkpoints go.
            model_path: the base model.
            share: what it may use.
            has_games: see :class:`LearnerState`.
            model: name of the trained model; ``None``: the only one of the run.
            shares_base_with: the service of another trained model in this process, with which it shares the
                base model and takes turns at computing; ``None``: it is the first.
        """
        other = shares_base_with
        config = config.for_model(model)
        self.state = LearnerState(config, run_id, model, has_games=has_games)
        self._config = config
        self._run_id = run_id
        self._data = data
        self._compute_lock: asyncio.Lock = other._compute_lock if other else asyncio.Lock()
        """Held while it computes: all services of a process share its random generators and other ranks."""
        self._algorithm = build_training_algorithm(config)
        self._home = home_of(config, run_id, data)
        self._tidier = CheckpointTidier(self._home, config.learner.keep_optimizer_states or "all", model)
        self._learner: StandardLearner = build_learners(
            config,
            self._algorithm,
            self._home,
            data.checkpoints(run_id),
            model_path,
            share,
            shares_base_with=other._learner if other else None,
        )
        self._transform = build_sampling(list(config.rewards.sampling))
        self._unsavable_state: UnsavableState | None = UnsavableState(self._transform)
        """``None``: it was warned of."""
        self._opened = ExitStack()
        """Keeps the checkpoint that the service began from: other ranks may read it after this one."""

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
        recorded = await RecordedConfigs.read(log, self._run_id)
        resumption = recorded.number_of(self._config, self.state.model)
        of_model = "" if self.state.model is None else f"/{self.state.model}"
        producer = await log.producer(f"learner/{self._run_id}{of_model}")
        ends = _Ends(
            log,
            await log.consumer([Step.TOPIC, GameOutcome.TOPIC]),
            await log.consumer([RecordRejected.TOPIC]),
            producer,
            resumption,
        )
        store_wait_report = None
        if isinstance(self._home, StoredHome):
            service = f"learner{of_model}".replace("/", "-")
            reporter = Reporter(
                log, self._run_id, service, lambda: {f"stores/{service}/wait_s": store_wait_s()}
            )
            store_wait_report = asyncio.ensure_future(reporter.run())
        try:
            recovery = Recovery(
                log,
                producer,
                self.state,
                self._learner,
                self._algorithm,
                self._transform,
                recorded,
                resumption,
                self._tidier,
                self._open,
            )
            async with self._compute_lock:
                starts, self._algorithm = await recovery.run()
            await ends.consumer.seek(_of(starts, Step.TOPIC, GameOutcome.TOPIC))
            await ends.dead_letters.seek(_of(starts, RecordRejected.TOPIC))
            while self._learner.step < self._config.learner.iterations and await self._collect(ends, stop):
                if await self._make_update(ends):
                    break  # the launcher reads the warning too, and stops the run
            await self._publish_last(ends)
            return self._learner.step
        except CheckpointError as error:
            await self._explain_if_fenced(producer, error)
            raise
        finally:
            if store_wait_report is not None:
                store_wait_report.cancel()
                await asyncio.wait([store_wait_report])
            await ends.consumer.close()
            await ends.dead_letters.close()
            await producer.close()

    def _open(self, checkpoint: Checkpoint) -> Path:
        assert checkpoint.path is not None, "only the initial policy is without weights"
        opened = opened_checkpoint(self._data.located(checkpoint.path), checkpoint.sha256, to_train=True)
        return self._opened.enter_context(opened)

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
            _logger.warning("it is not known whether another learner has taken over", reason=str(unknown))

    # -- reading --------------------------------------------------------------------------------

    async def _collect(self, ends: _Ends, stop: asyncio.Event) -> bool:
        """Read until a batch can be drawn; return ``False`` if ``stop`` came first."""
        update = self._learner.step + 1
        while not stop.is_set():
            await self._drop_unreadable(ends, update)
            action = self.state.next_action(update)
            if action == "draw":
                return True
            if action == "drop-stale":
                await self._drop_stale(ends.producer, update)
            records = of_run(await ends.consumer.poll(max_records=5000, timeout_s=_POLL_S), self._run_id)
            self.state.add_steps(record for record in records if record.topic == Step.TOPIC)
            for event in readable_events(record for record in records if record.topic == GameOutcome.TOPIC):
                if isinstance(event, GameOutcome) and event.run_id == self._run_id:
                    self.state.finish_game(event)
                    self.state.tally.add(event)
        return False

    async def _drop_stale(self, producer: Producer, update: int) -> None:
        self.state.check_staleness(update)
        dropped = self.state.buffer.drop(update)
        _logger.warning(
            "all pending steps are too stale and are dropped: raise buffer.max_staleness to train on them",
            steps=len(dropped),
            max_staleness=self._config.buffer.max_staleness,
        )
        await publish_drops(producer, self.state, update, dropped)

    async def _drop_unreadable(self, ends: _Ends, update: int) -> None:
        """Record the steps as dropped that never come, because their trajectories cannot be decoded."""
        if not self.state.has_games:
            return
        events = readable_events(await ends.dead_letters.poll(max_records=1000, timeout_s=0))
        rejected = [event for event in events if isinstance(event, RecordRejected)]
        # If what follows fails, nothing is saved any more.
        self.state.other_positions |= ends.dead_letters.positions()
        trajectories = self.state.unreadable(rejected)
        if not trajectories:
            return
        games = await promised_steps(ends.log, self.state, trajectories)
        if never := self.state.forget_promised(games):
            _logger.warning("trajectories cannot be decoded: their steps are dropped", steps=len(never))
            dropped = [DroppedStep(step, UNREADABLE) for step in never]
            await publish_drops(ends.producer, self.state, update, dropped)

    # -- one update -----------------------------------------------------------------------------

    async def _make_update(self, ends: _Ends) -> bool:
        """Make one update and publish it; return whether a sign of a collapse ends the run."""
        self.state.other_positions |= await ends.log.end_offsets(LearnerUpdate.TOPIC)
        async with self._compute_lock:
            update, checkpoint = await self._update(ends)  # 1 to 3
        warnings = self.state.watch_update(update, now_ms())  # 4
        saved: list[Event] = [] if checkpoint is None else [checkpoint]
        await publish(ends.producer, [update, *warnings, *saved])  # 5
        self.state.warnings += warnings
        await self._tidier.tidy(checkpoint)  # 6
        return any(warning.action == "stop" for warning in warnings)

    async def _update(self, ends: _Ends) -> tuple[LearnerUpdate, Checkpoint | None]:
        state, settings, learner = self.state, self._config.learner, self._learner
        number = learner.step + 1
        started = time.monotonic()
        decision = decide_update(
            state.buffer, settings.batch_size, number, self._transform, self._algorithm.admit
        )  # 1
        if warning := state.check_trains(decision, number):
            _logger.warning(warning)
        result, computed_with = await computed(self._train, decision, number)  # 2
        state.draw_positions = dict(ends.consumer.positions())
        at_ms = now_ms()
        saves = number % settings.save_every == 0 or number == settings.iterations
        checkpoint = await self._save(ends.log, number, at_ms) if saves else None  # 3
        update = LearnerUpdate(
            event_id=state.event_id("learner-update", number),
            run_id=self._run_id,
            occurred_at_ms=at_ms,
            update=number,
            step_ids=decision.trained_ids,
            dropped=decision.dropped,
            loss=result.loss,
            metrics={
                **result.metrics,
                **decision.metrics,
                **state.tally.take(),
                "samples_seen": float(learner.samples_seen),
            },
            model_uid=checkpoint.model_uid if checkpoint else None,
            positions=_named(state.draw_positions),
            duration_ms=(time.monotonic() - started) * 1000,
            model=state.model,
            resumption=ends.resumption,
            computed_with=computed_with,
        )
        return update, checkpoint

    def _train(self, decision: UpdateDecision, update: int) -> tuple[UpdateResult, dict[str, str]]:
        result = self._learner.update(
            decision.samples,
            update,
            decision.admissions,
            learning_rate_factor=self.state.learning_rate_factor(update),
        )
        return result, self._learner.computed_with()

    # -- checkpoints ----------------------------------------------------------------------------

    async def _publish_last(self, ends: _Ends) -> None:
        """Publish the weights of the last update if ``save_every`` left them out.

        A resume then trains nothing again, for which steps may be gone from the log; and one that wants no
        more updates has its last checkpoint. One that is stopped soon after a restart may not have read up to
        the last draw again: then its buffer lacks steps, and what it knows is not saved.
        """
        if self._learner.step == self.state.last_checkpoint:
            return
        self.state.other_positions |= await ends.log.end_offsets(LearnerUpdate.TOPIC)
        read = ends.consumer.positions()
        complete = all(read.get(at, 0) >= offset for at, offset in self.state.draw_positions.items())
        async with self._compute_lock:
            checkpoint = await self._save(ends.log, self._learner.step, now_ms(), complete=complete)
        await publish(ends.producer, [checkpoint])
        await self._tidier.tidy(checkpoint)

    async def _save(self, log: EventLog, number: int, at_ms: int, *, complete: bool = True) -> Checkpoint:
        """Save the weights after update ``number``; the caller publishes the event.

        ``complete``: the buffer has all steps up to the last draw, so that a restart may go on from it.
        """
        self._warn_of_unsavable_state()
        state = self.state
        with self._home.saving() as root:
            info = await computed(
                self._learner.save,
                positions=_named(state.draw_positions),
                sampling=self._transform.state(),
                root=root,
                model=state.model,
            )
            if complete and state.has_games:
                saved = state.saved(number, await log.log_id())
                await asyncio.to_thread(_write_state, Path(info.path), saved)
            path = await asyncio.to_thread(self._home.publish, Path(info.path))
        probe = await computed(self._learner.probe)
        config = self._config
        whole = config.learner.parameters == "all"
        checkpoint = Checkpoint(
            event_id=state.event_id("checkpoint", number),
            run_id=self._run_id,
            occurred_at_ms=at_ms,
            model_uid=checkpoint_uid(number, state.model),
            iteration=number,
            path=path,
            sha256=info.sha256,
            size_bytes=info.size_bytes,
            base_model=config.model,
            parameters=config.learner.parameters,
            lora={} if whole else config.lora.model_dump(mode="json"),
            parent_uid=checkpoint_uid(state.last_checkpoint, state.model),
            probe=probe,
            model=state.model,
        )
        state.last_checkpoint = number
        return checkpoint

    def _warn_of_unsavable_state(self) -> None:
        if self._unsavable_state is None:
            return
        try:
            self._unsavable_state.check()
        except ValueError as error:
            _logger.warning("a restart would not give the same advantages", reason=str(error))
            self._unsavable_state = None


class Learners:
    """All trained models of a run, in one process: a learner service for each; most runs have one.

    They consume, decide and publish on their own, and take turns at computing: they share the learner's place
    on the machines, one copy of the base model, PyTorch's random generators, and the processes of the other
    ranks, if there are any (:mod:`unstable_stream.services.workers.learner_core`).
    """

    def __init__(
        self, config: RunConfig, run_id: str, data: DataDir, model_path: str, share: Share | None = None
    ) -> None:
        """Load the base model; the arguments are those of :class:`LearnerService`."""
        self._services: list[LearnerService] = []
        try:
            for model in config.model_names:
                first = self._services[0] if self._services else None
                self._services.append(
                    LearnerService(
                        config,
                        run_id,
                        data,
                        model_path,
                        share,
                        has_games=not config.imitates,
                        model=model,
                        shares_base_with=first,
                    )
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End what the services have started."""
        for service in self._services:
            service.close()

    async def train(self, log: EventLog, stop: asyncio.Event) -> int:
        """Train every model to its end, or until ``stop`` is set; see :meth:`LearnerService.train`. Return
        the number of updates that every model has had.

        The first failure ends all: what the others have published stays, and a restart goes on from there.
        """
        training = [asyncio.ensure_future(service.train(log, stop)) for service in self._services]
        try:
            return min(await asyncio.gather(*training))
        finally:
            for each in training:
                each.cancel()
            await asyncio.gather(*training, return_exceptions=True)


def _named(positions: Positions) -> dict[str, int]:
    return {str(at): offset for at, offset in sorted(positions.items())}


def _of(positions: Positions, *topics: str) -> Positions:
    return {at: offset for at, offset in positions.items() if at.topic in topics}


def _write_state(directory: Path, saved: SavedLearner) -> None:
    """Write what the learner knows beside a checkpoint. Without it, as on a full disk, a restart takes
    longer.
    """
    staging = directory / f".{LEARNER_STATE_FILE}"
    try:
        with staging.open("wb") as file:
            file.write(pack_state(saved))
            file.flush()
            os.fsync(file.fileno())
        staging.rename(directory / LEARNER_STATE_FILE)
    except OSError as error:
        _logger.warning("what the learner knows was not saved", path=str(staging), reason=str(error))
