"""Compare recorded games, trajectories and starts with the games played again."""

from unstable_stream.events import (
    ON_ENGINE,
    Event,
    GameOutcome,
    GameStarted,
    Trajectory,
    encode_event,
    event_id,
    trajectory_id,
)
from unstable_stream.events.id_sets import IndexSet, body_digest
from unstable_stream.log.port import EventLog, StoredRecord
from unstable_stream.log.records import event_from_record
from unstable_stream.proofs.differences import Difference, differing_fields
from unstable_stream.proofs.expected_records import DerivedCheck, Expected
from unstable_stream.proofs.play_again import (
    PlayedAgain,
    Replayer,
    ReplayRules,
    replay,
    started_view,
    trajectory_view,
)
from unstable_stream.proofs.record_index import RecordIndex
from unstable_stream.proofs.reports import Check
from unstable_stream.runs.config import RunConfig

__all__ = ["GameCheck"]


class GameCheck:
    """Games played again, their trajectories, and their starts."""

    def __init__(self, log: EventLog, config: RunConfig, jobs: int) -> None:
        self._log = log
        self._rules = ReplayRules(config.collector.max_turns, config.collector.invalid_moves_allowed)
        self._replayer: Replayer[StoredRecord] = Replayer(self._rules, jobs)
        self._seen: dict[str, IndexSet] = {}
        self._check = Check("games")
        self._trajectory_counts = Check("trajectories")
        self._start_counts = Check("game starts")
        self._views = RecordIndex(Trajectory.TOPIC)
        self._starts = RecordIndex(GameStarted.TOPIC)
        self._trajectories: DerivedCheck | None = None
        self._started: DerivedCheck | None = None

    @property
    def checks(self) -> list[Check]:
        """The result: games, trajectories, game starts."""
        return [self._check, self._trajectory_counts, self._start_counts]

    def close(self) -> None:
        self._replayer.close()

    def add_started(self, record: StoredRecord, event: GameStarted) -> None:
        self._starts.add(record.partition, record.offset, event.event_id, body_digest(started_view(event)))

    async def apply(self, record: StoredRecord, event: Event) -> None:
        """Pass all trajectories first, then the outcomes."""
        if isinstance(event, Trajectory):
            self._views.add(
                record.partition, record.offset, event.event_id, body_digest(trajectory_view(event))
            )
        # A game whose worker died may have been played twice: the first one counts for all consumers.
        elif (
            isinstance(event, GameOutcome)
            and event.seats
            and self._seen.setdefault(event.split, IndexSet()).add(event.game_index)
        ):
            self._expect_start(record, event)
            for result in await self._replayer.add(record, event):
                self._judge(*result)

    def _expect_start(self, record: StoredRecord, outcome: GameOutcome) -> None:
        view = started_view(outcome)
        started = event_id(outcome.run_id, "game-started", outcome.split, outcome.game_index)
        self._open_starts().expect(Expected(started, body_digest(view), lambda: view, str(record)))

    def _judge(self, record: StoredRecord, outcome: GameOutcome, again: PlayedAgain) -> None:
        self._check.compared += 1
        if again.problem is not None:
            self._check.differs(Difference(str(record), outcome.event_id, again.problem))
            for seat in outcome.seats:
                if seat.kind in ON_ENGINE and seat.turns:
                    trajectory = trajectory_id(outcome.game_id, seat.seat)
                    self._open_trajectories().expect(Expected(trajectory, None, bytes, str(record)))
        elif again.outcome is not None:
            fields = differing_fields(encode_event(outcome), again.outcome)
            path, recorded, recomputed = fields[0]
            what = f"played again, the outcome differs in {len(fields)} field(s), first"
            self._check.differs(Difference(str(record), outcome.event_id, what, path, recorded, recomputed))
        for trajectory, view in again.views:
            self._expect_trajectory(record, outcome, trajectory, view)

    def _expect_trajectory(
        self, record: StoredRecord, outcome: GameOutcome, trajectory: str, view: bytes
    ) -> None:
        self._open_trajectories().expect(
            Expected(
                trajectory,
                body_digest(view),
                lambda: dict(replay(outcome, self._rules).views)[trajectory],
                str(record),
            )
        )

    async def finish(self) -> None:
        for result in await self._replayer.rest():
            self._judge(*result)
        for check in (self._open_trajectories(), self._open_starts()):
            await check.finish(self._log)

    # Indexes are sealed when all trajectories and starts are in them, which is before the first outcome.

    def _open_trajectories(self) -> DerivedCheck:
        if self._trajectories is None:
            self._views.seal()
            self._trajectories = DerivedCheck(
                self._trajectory_counts, self._views, comparable=_view, replayed=True
            )
        return self._trajectories

    def _open_starts(self) -> DerivedCheck:
        if self._started is None:
            self._starts.seal()
            self._started = DerivedCheck(self._start_counts, self._starts, comparable=_start, extras=True)
        return self._started


def _start(record: StoredRecord) -> bytes:
    event = event_from_record(record)
    assert isinstance(event, GameStarted)
    return started_view(event)


def _view(record: StoredRecord) -> bytes:
    event = event_from_record(record)
    assert isinstance(event, Trajectory)
    return trajectory_view(event)
