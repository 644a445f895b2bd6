"""An alert on a rising rate of invalid moves, for each environment and checkpoint.

    unstable-stream consume examples/consumers/invalid_moves.py

Over a checkpoint's last 50 games in an environment (each seat it plays counts) it takes the share that ended
by an invalid move of its own. From the 50th on it emits ``invalid-moves/ENV/CHECKPOINT`` after every tenth
and logs one warning when the share rises above 25 %; another only after it has fallen to half of that. Until
then ``alerts/invalid-moves/ENV/CHECKPOINT`` stands on the run's live page.
"""

from dataclasses import dataclass, field

from unstable_stream import Context, consumer
from unstable_stream.events import GameOutcome

WINDOW_GAMES = 50
EVERY_GAMES = 10
THRESHOLD = 0.25
CHECKPOINTS_KEPT = 16


@dataclass
class Recent:
    """One checkpoint's last games in one environment."""

    games: int = 0
    invalid: list[bool] = field(default_factory=list)
    """Whether each ended by its invalid move, oldest first."""
    alarmed: bool = False


@dataclass
class Rates:
    """By environment, then checkpoint; the newest checkpoints only."""

    recent: dict[str, dict[str, Recent]] = field(default_factory=dict)


@consumer(topics=["game-outcomes"], name="invalid-move-alert", state=Rates)
class InvalidMoveAlert:
    """Warns when a checkpoint's games end more and more often by its invalid moves."""

    def handle(self, event: GameOutcome, context: Context) -> None:
        checkpoints: dict[str, Recent] = context.state.recent.setdefault(event.env_id, {})
        played: dict[str, list[bool]] = {}
        for seat in event.seats:
            if seat.kind == "checkpoint":
                played.setdefault(seat.model_uid, []).append(event.invalid_seat == seat.seat)
        for model, invalid in played.items():
            recent = checkpoints.setdefault(model, Recent())
            before = recent.games
            recent.games += len(invalid)
            recent.invalid = [*recent.invalid, *invalid][-WINDOW_GAMES:]
            if recent.games >= WINDOW_GAMES and recent.games // EVERY_GAMES > before // EVERY_GAMES:
                self.report(event, model, recent, context)
        for old in sorted(checkpoints)[:-CHECKPOINTS_KEPT]:
            del checkpoints[old]

    def report(self, event: GameOutcome, model: str, recent: Recent, context: Context) -> None:
        """Emit the rate, and warn if it has just become too high."""
        rate = sum(recent.invalid) / len(recent.invalid)
        name = f"invalid-moves/{event.env_id}/{model}"
        context.emit(name, rate)
        if rate > THRESHOLD and not recent.alarmed:
            recent.alarmed = True
            context.emit(f"alerts/{name}", rate)
            context.logger.warning(
                "invalid moves", env=event.env_id, model=model, rate=round(rate, 3), games=len(recent.invalid)
            )
        elif rate <= THRESHOLD / 2 and recent.alarmed:
            recent.alarmed = False
            context.emit(f"alerts/{name}", 0.0)
