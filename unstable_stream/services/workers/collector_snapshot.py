"""The snapshots of a collector: what it knows of its run, saved with the positions up to which it has read.

Without one it reads all games and outcomes of its run again when it starts. It is one saved state
(:meth:`~unstable_stream.log.port.Transaction.save`) in a scope of its own: the schedules' state and the
positions of all topics. Own games are in it as soon as they were published, so it may know of some behind
these positions: they are recognised by their numbers. Of checkpoints it has the names; their events are read
again.

It may be deleted at any time, and is not used if it is damaged, of another format, log, or settings:
then the collector reads its run from the beginning.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from unstable_stream.console import get_logger
from unstable_stream.events import Checkpoint, GameStarted
from unstable_stream.extensions import KINDS, use_of
from unstable_stream.log.port import EventLog, Positions, Transaction
from unstable_stream.log.saved_state import (
    SavedState,
    UnusableStateError,
    check_state,
    pack_state,
    saved_positions,
    unpack_state,
)
from unstable_stream.runs.code import named_code
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.starts import run_events
from unstable_stream.services.streams.snapshots import (
    MOST_BYTES,
    SinceSnapshot,
    SnapshotPace,
    scope_of_topics,
)
from unstable_stream.services.workers.exploitability import ExploitabilitySchedule
from unstable_stream.services.workers.game_schedule import GameSchedule, ScheduleState

_FORMAT: Final = 1
"""To be raised when the fold or its state changes."""
_STATE: Final = "state"
_CODE: Final = ("opponent_sampling", "rating_system")
"""The kinds of extension that the fold calls."""

_SECTIONS: Final = ("seed", "train_envs", "eval_envs", "evaluation", "model_pool", "trained_models")

_log = get_logger(__name__)


class SavedCollector(SavedState, frozen=True, kw_only=True):
    """A snapshot."""

    checkpoints: list[str]
    """The uids, in the order in which they came."""
    schedule: ScheduleState
    measured: list[str]


def _schedule_digest(config: RunConfig) -> str:
    """Return the digest of a run's schedules; if it is equal, the same events give the same state.

    A resumed run may have other settings. Of these it names all that the folds read, but no defaults: a
    setting that a later version adds leaves the digests of earlier runs as they are.
    """
    values = config.model_dump(mode="json", exclude_defaults=True)
    uses = [
        use_of(KINDS[kind], reference, key) for kind, key, reference in named_code(config) if kind in _CODE
    ]
    about = [
        {name: values.get(name) for name in _SECTIONS},
        config.learner.iterations,
        config.collector.filter_opponent_invalid,
        GameStarted.SCHEMA_VERSION,
        uses,
    ]
    return hashlib.sha256(msgspec.json.encode(about)).hexdigest()


def _scope(run_id: str, topics: Iterable[str]) -> str:
    return scope_of_topics(f"collector/{run_id}", topics)


async def read_snapshot(
    log: EventLog, run_id: str, topics: Sequence[str], config: RunConfig
) -> tuple[SavedCollector, list[Checkpoint]] | None:
    """Return what was saved of a run's collector, and its checkpoints in order; ``None`` if nothing was.

    Args:
        log: the event log.
        run_id: the run.
        topics: the topics that the collector reads.
        config: the settings of the schedules as they are now.

    Raises:
        UnusableStateError: the collector has to read its run from the beginning instead.
        OffsetOutOfRangeError: it knows records that the log has lost.
        ConfigError: code that the configuration names is not here.
    """
    saved = (await log.saved(_scope(run_id, topics), [_STATE])).get(_STATE)
    if saved is None:
        return None
    state = unpack_state(saved, SavedCollector, _FORMAT, _schedule_digest(config))
    await check_state(log, state)
    found: dict[str, Checkpoint] = {}
    async for _, event in run_events(log, (Checkpoint.TOPIC,), run_id):
        if isinstance(event, Checkpoint):
            found.setdefault(event.model_uid, event)
    if missing := [uid for uid in state.checkpoints if uid not in found]:
        raise UnusableStateError(f"checkpoint {missing[0]} is not in the log")
    return state, [found[uid] for uid in state.checkpoints]


class CollectorSnapshots:
    """Tells when a snapshot is due, and saves it."""

    def __init__(
        self,
        log: EventLog,
        run_id: str,
        topics: Sequence[str],
        config: RunConfig,
        schedule: GameSchedule,
        measuring: ExploitabilitySchedule,
        pace: SnapshotPace,
    ) -> None:
        """``topics``: those that the collector reads; the schedules are its state, fresh until loaded."""
        self._event_log = log
        self._run_id = run_id
        self._topics = topics
        self._config = config
        self._digest = _schedule_digest(config)
        self._schedule = schedule
        self._measuring = measuring
        self.since = SinceSnapshot(pace)
        """The records that were folded since the last one was saved."""
        self.fits = True
        """False once one was too large: none is made any more."""

    async def load(self) -> Positions:
        """Let the schedules go on from the last snapshot; return its positions: none if there is none that
        can be used.
        """
        try:
            saved = await read_snapshot(self._event_log, self._run_id, self._topics, self._config)
        except UnusableStateError as error:
            reason = "snapshot not used: the whole run is read instead"
            _log.warning(reason, run=self._run_id, reason=str(error))
            return {}
        if saved is None:
            return {}
        state, checkpoints = saved
        self._schedule.load_state(state.schedule, checkpoints)
        self._measuring.load_state(state.measured, checkpoints)
        return state.offsets

    async def save(self, transaction: Transaction, positions: Positions) -> None:
        """Save the state of schedules that know all records before ``positions``.

        The transaction must be one of the collector's fenced producer.
        """
        state = self._state(await self._event_log.log_id(), positions)
        if len(state) > MOST_BYTES:
            self.fits = False
            _log.warning(
                "snapshot not saved: a restart reads the whole run",
                run=self._run_id,
                reason=f"it takes {len(state)} bytes, and at most {MOST_BYTES} are saved",
            )
        else:
            await transaction.save(_scope(self._run_id, self._topics), {_STATE: state})
        self.since.saved(len(state))

    def _state(self, log_id: str, positions: Positions) -> bytes:
        state = SavedCollector(
            format=_FORMAT,
            digest=self._digest,
            log_id=log_id,
            positions=saved_positions(positions),
            checkpoints=list(self._schedule.checkpoints),
            schedule=self._schedule.state(),
            measured=self._measuring.state(),
        )
        return pack_state(state)
