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
from unstable_stream.history.proofs.expected_records import DerivedCheck, Expected
from unstable_stream.history.proofs.ledger import RecordIndex
from unstable_stream.history.proofs.play_again import (
    PlayedAgain,
    Replayer,
    ReplayRules,
    replay,
    started_view,
    trajectory_view,
)
from unstable_stream.history.proofs.reports import Check, Difference
from unstable_stream.log.port import EventLog, StoredRecord
from unstable_stream.log.records import event_from_record
from unstable_stream.runs.config import RunConfig


class GameCheck:
    """Games played again, their trajectories, and their starts."""

    def __init__(self, log: EventLog, config: RunConfig, jobs: int) -> None:
        self._log = log
        self._rules = ReplayRules(config.collector.max_turns, config.collector.invalid_moves_allowed)
        self._replayer: Replayer[StoredRecord] = Replayer(self._rules, jobs)
        self._seen: dict[str, IndexSet] = {}
        self._check = Check("games")
        self._trajectories = DerivedCheck(
            Check("trajectories"), RecordIndex(Trajectory.TOPIC), comparable=_view, replayed=True
        )
        self._starts = DerivedCheck(
            Check("game starts"), RecordIndex(GameStarted.TOPIC), comparable=_view, extras=True
        )

    @property
    def checks(self) -> list[Check]:
        """The result: games, trajectories, game starts."""
        return [self._check, self._trajectories.check, self._starts.check]

    def close(self) -> None:
        self._replayer.close()

    def add_started(self, record: StoredRecord, event: GameStarted) -> None:
        digest = body_digest(started_view(event))
        self._starts.index.add(record.partition, record.offset, event.event_id, digest)

    async def apply(self, record: StoredRecord, event: Event) -> None:
        """Pass all trajectories first, then the outcomes."""
        if isinstance(event, Trajectory):
            digest = body_digest(trajectory_view(event))
            self._trajectories.index.add(record.partition, record.offset, event.event_id, digest)
        # A game whose worker died may have been played twice: the first one counts for all consumers.
        elif (
            isinstance(event, GameOutcome)
            and event.seats
            and self._seen.setdefault(event.split, IndexSet()).add(event.game_index)
        ):
            view = started_view(event)
            started = event_id(event.run_id, "game-started", event.split, event.game_index)
            self._starts.expect(Expected(started, body_digest(view), lambda: view, str(record)))
            for result in await self._replayer.add(record, event):
                self._judge(*result)

    def _judge(self, record: StoredRecord, outcome: GameOutcome, again: PlayedAgain) -> None:
        self._check.compared += 1
        if again.problem is not None:
            self._check.differs(Difference(str(record), outcome.event_id, again.problem))
            for seat in outcome.seats:
                if seat.kind in ON_ENGINE and seat.turns:
                    trajectory = trajectory_id(outcome.game_id, seat.seat)
                    self._trajectories.expect(Expected(trajectory, None, bytes, str(record)))
        elif again.outcome is not None:
            self._check.differs(
                Difference.between(
                    str(record),
                    outcome.event_id,
                    encode_event(outcome),
                    again.outcome,
                    of="the outcome ",
                    source="that of the game played again",
                )
            )
        for trajectory, view in again.views:
            self._expect_trajectory(record, outcome, trajectory, view)

    def _expect_trajectory(
        self, record: StoredRecord, outcome: GameOutcome, trajectory: str, view: bytes
    ) -> None:
        self._trajectories.expect(
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
        for check in (self._trajectories, self._starts):
            await check.finish(self._log)


def _view(record: StoredRecord) -> bytes:
    event = event_from_record(record)
    assert isinstance(event, Trajectory | GameStarted)
    return trajectory_view(event) if isinstance(event, Trajectory) else started_view(event)
