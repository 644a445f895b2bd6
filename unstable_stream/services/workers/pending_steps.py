"""Steps that games have produced and no update has used yet: the back-pressure on starting games.

An outcome says how many steps follow from its game. They are consumed when an update trains on them or drops
them; when a drop is recorded between updates; and when their trajectory was quarantined, so that no step will
come of it.
"""

from collections import Counter
from typing import Final

from unstable_stream.errors import EventError
from unstable_stream.events import (
    GameOutcome,
    LearnerUpdate,
    RecordRejected,
    StepsDropped,
    Trajectory,
    decode_event,
    trained_model,
)
from unstable_stream.reward_transformations import RewardProcessor, expected_steps_of
from unstable_stream.services.streams.processor import group_of
from unstable_stream.services.workers.dropped_steps import UNREADABLE

_GUESSED_PER_GAME: Final = 5
"""The assumed number of steps of a game before any has finished; the measured mean soon replaces it."""


class PendingSteps:
    """A fold that counts, by trained model; the only one of a run has no name."""

    def __init__(self, run_id: str, *, filter_opponent_invalid: bool) -> None:
        self._run_id = run_id
        self._filtering = filter_opponent_invalid
        self._groups = {group_of(RewardProcessor.name, run) for run in (run_id, None)}
        """The groups that make steps of the run's trajectories."""
        self.games = 0
        self.produced: Counter[str | None] = Counter()
        self.consumed: Counter[str | None] = Counter()
        self.drops: set[str] = set()
        """Events of drops between updates: few, each of all that was pending or of a restart."""
        self.quarantined: set[str] = set()
        """Trajectories on ``dead-letters``: no step will come of them."""
        self.steps_quarantined = 0
        """The number of steps that would have come of them, and of such as cannot be decoded."""

    def add_game(self, outcome: GameOutcome) -> None:
        """Fold the outcome of a training game, once."""
        self.games += 1
        self.produced.update(expected_steps_of(outcome, filter_opponent_invalid=self._filtering))

    def add_update(self, update: LearnerUpdate) -> None:
        """Fold an update, once."""
        self.consumed[update.model] += len(update.step_ids) + len(update.dropped)

    def add_drops(self, event: StepsDropped) -> None:
        """Fold drops between updates."""
        if event.event_id not in self.drops:
            self.drops.add(event.event_id)
            self.consumed[event.model] += len(event.dropped)
            self.steps_quarantined += sum(drop.reason == UNREADABLE for drop in event.dropped)

    def add_rejected(self, letter: RecordRejected) -> None:
        """Count the steps that its game's outcome promised as consumed: the letter holds the trajectory.

        The letter of a host of all runs names no run, and that of a record that is no event promises nothing.
        """
        if letter.consumer not in self._groups:
            return
        try:
            event = decode_event(letter.record_value)
        except EventError:
            return
        if not isinstance(event, Trajectory) or event.run_id != self._run_id:
            return
        filtered = self._filtering and event.opponent_invalid
        counts = event.trained and event.split == "train" and not filtered
        if counts and event.event_id not in self.quarantined:
            self.quarantined.add(event.event_id)
            self.consumed[trained_model(event.model_uid)] += len(event.turns)
            self.steps_quarantined += len(event.turns)

    def total(self) -> int:
        """Return the number of pending steps of all models."""
        return self.produced.total() - self.consumed.total()

    def of(self, model: str | None) -> int:
        """Return the number of pending steps of a model."""
        return self.produced[model] - self.consumed[model]

    def per_game(self, model: str | None) -> float:
        """Return how many steps a game gives a model, on average so far."""
        return (self.produced[model] + _GUESSED_PER_GAME) / (self.games + 1)
