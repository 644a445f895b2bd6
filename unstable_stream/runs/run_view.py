"""An overview of a run for people, folded from its events."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from unstable_stream.algorithms.intervals import wilson_interval
from unstable_stream.events import (
    OVERALL,
    Checkpoint,
    CollapseWarning,
    Event,
    GameAbandoned,
    GameOutcome,
    GameStarted,
    LearnerUpdate,
    Metrics,
    Rating,
    RunResumed,
    RunStarted,
    Trajectory,
    are_partners,
    trained_model,
)
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.model_pool.results import one_of_each_side
from unstable_stream.model_pool.same_games import SameGame, SameGames, Surplus
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import RunStatus

_RECENT_GAMES = 256
_RECENT_TURNS = 512
_RECENT_UPDATES = 20
_RATE_WINDOW_MS = 20_000
_OF_PARTS = ("inference/", "gpu/")


@dataclass
class Score:
    """Wins, draws and losses of one side."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    won_by_invalid: int = 0
    """Of the wins, those by another's invalid move."""
    lost_by_invalid: int = 0
    """Of the losses, those by an invalid move of its own."""
    surplus: Surplus = field(default_factory=Surplus)
    """Of the games, and of the wins, those that repeat others."""

    @property
    def games(self) -> int:
        """The number of all games."""
        return self.wins + self.draws + self.losses

    @property
    def independent_games(self) -> int:
        """The number of games where those that repeat others count once."""
        return round(self.games - self.surplus.total()[0])

    @property
    def win_rate(self) -> float:
        """Wins over games; 0 without games."""
        return self.wins / self.games if self.games else 0.0

    def interval(self) -> tuple[float, float]:
        """Return the Wilson score interval of the win rate at 95 % (Wilson 1927); (0, 1) without games.

        Games that repeat others count once.
        """
        return wilson_interval(round(self.wins - self.surplus.total()[1]), self.independent_games)

    def add(self, reward: float, best_other: float, same: SameGame, *, by_invalid: bool = False) -> None:
        """Count one game by this side's reward and the best reward of the others.

        Args:
            reward: of this side.
            best_other: the best of the others.
            same: the games of these players in these seats.
            by_invalid: an invalid move ended it.
        """
        self.surplus.add(same, reward > best_other)
        if reward > best_other:
            self.wins += 1
            self.won_by_invalid += by_invalid
        elif reward < best_other:
            self.losses += 1
            self.lost_by_invalid += by_invalid
        else:
            self.draws += 1


class Matchup(NamedTuple):
    """The games of one side in one environment against one opponent."""

    env_id: str
    opponent: str
    model: str | None = None
    """The trained model; ``None``: the only one of the run."""

    @property
    def label(self) -> str:
        """The opponent, after the model that played it if there are several."""
        return self.opponent if self.model is None else f"{self.opponent} by {self.model}"


@dataclass
class GamesInFlight:
    """The games that were started and have not ended."""

    abandoned: int = 0
    """Of those that ended, how many without a result."""
    _ids: set[str] = field(default_factory=set)
    _ended: dict[str, IndexSet] = field(default_factory=dict)
    """By split, the indices of the games that have ended."""

    def __len__(self) -> int:
        return len(self._ids)

    def has_ended(self, event: GameStarted | GameOutcome) -> bool:
        """Return whether the end of its game is known."""
        return event.split in self._ended and event.game_index in self._ended[event.split]

    def start(self, event: GameStarted) -> None:
        """Count a game, unless its end came before."""
        if not self.has_ended(event):
            self._ids.add(event.game_id)

    def end(self, event: GameOutcome | GameAbandoned) -> None:
        """Note the end of a game."""
        self._ended.setdefault(event.split, IndexSet()).add(event.game_index)
        self._ids.discard(event.game_id)


@dataclass
class Latest:
    """The latest games, turns and updates."""

    games: deque[tuple[bool, bool]] = field(default_factory=lambda: deque(maxlen=_RECENT_GAMES))
    """For training games against others: whether we won, and whether our invalid move ended it."""
    lengths: deque[int] = field(default_factory=lambda: deque(maxlen=_RECENT_GAMES))
    turns: deque[tuple[bool, bool]] = field(default_factory=lambda: deque(maxlen=_RECENT_TURNS))
    """For turns that are trained on: whether the answer had the template's form, and was legal."""
    updates: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_RECENT_UPDATES))
    """The number of all updates by then, and the time."""
    _ends: deque[tuple[int, int]] = field(default_factory=deque)

    def add_end(self, at_ms: int, turns: int) -> None:
        """Count a game that has ended, with its trained turns."""
        self._ends.append((at_ms, turns))
        self._forget_ends(at_ms)

    def rates(self, now_ms: int) -> tuple[float, float]:
        """Return games and trained turns per second over the last seconds."""
        self._forget_ends(now_ms)
        if not self._ends:
            return (0.0, 0.0)
        seconds = max(1.0, (now_ms - self._ends[0][0]) / 1000)
        return (len(self._ends) / seconds, sum(turns for _, turns in self._ends) / seconds)

    def _forget_ends(self, now_ms: int) -> None:
        while self._ends and self._ends[0][0] < now_ms - _RATE_WINDOW_MS:
            self._ends.popleft()


@dataclass
class Reported:
    """The newest that the services of the run report."""

    engine: dict[str, float] = field(default_factory=dict)
    """The metrics of each engine and of each GPU."""
    pool: dict[str, float] = field(default_factory=dict)
    """The metrics of the model pool."""
    nash_conv: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The newest measured update and its NashConv, by game."""
    waits_for_store: set[str] = field(default_factory=set)
    """Services that wait for a store with checkpoints."""
    _pool_at_ms: int = 0

    def apply(self, event: Metrics) -> None:
        """Fold one report."""
        if event.source == "model-pool":
            if event.occurred_at_ms >= self._pool_at_ms:
                self.pool, self._pool_at_ms = event.values, event.occurred_at_ms
        elif event.source == "exploitability":
            self._apply_exploitability(event)
        else:
            self.engine.update({k: v for k, v in event.values.items() if k.startswith(_OF_PARTS)})
            self._apply_store_waits(event)

    def _apply_store_waits(self, event: Metrics) -> None:
        for name, value in event.values.items():
            if name.startswith("stores/"):
                service = name.split("/")[1]
                self.waits_for_store.discard(service)
                if value > 0:
                    self.waits_for_store.add(service)

    def _apply_exploitability(self, event: Metrics) -> None:
        update = event.update or 0
        for name, value in event.values.items():
            game, _, measure = name.removeprefix("exploitability-").partition("/")
            if measure == "nash-conv" and update >= self.nash_conv.get(game, (0, 0.0))[0]:
                self.nash_conv[game] = (update, value)

    def by_part(self, prefix: str) -> dict[str, dict[str, float]]:
        """Return the metrics under ``inference/`` or ``gpu/``: for each engine or GPU, by short name."""
        found: dict[str, dict[str, float]] = {}
        for name in sorted(name for name in self.engine if name.startswith(prefix)):
            part, _, measure = name.removeprefix(prefix).partition("/")
            found.setdefault(part, {})[measure] = self.engine[name]
        return found

    def matches(self, model_uid: str) -> int:
        """Return how many training games have met a model, in all environments."""
        return int(sum(n for name, n in self.pool.items() if name.endswith(f"/matches/{model_uid}")))

    def novelty(self, model_uid: str) -> float | None:
        """Return the share of new sequences of moves in a model's latest games; ``None``: not in the pool."""
        return self.pool.get(f"model-pool/novelty/{model_uid}")

    def coverage(self) -> int:
        """Return the distinct sequences of moves in the latest training games of all environments."""
        return int(sum(n for name, n in self.pool.items() if name.endswith("/coverage")))


@dataclass
class RunView:
    """The fold. Pass it every event of the run, in any topic order."""

    run_id: str
    config: RunConfig
    games: dict[str, int] = field(default_factory=lambda: {"train": 0, "eval": 0})
    in_flight: GamesInFlight = field(default_factory=GamesInFlight)
    latest: Latest = field(default_factory=Latest)
    reported: Reported = field(default_factory=Reported)
    updates: dict[str | None, int] = field(default_factory=dict)
    """The number of the newest update of each trained model; the only one of a run has no name."""
    last_updates: dict[str | None, LearnerUpdate] = field(default_factory=dict)
    """The newest update of each trained model."""
    evaluations: dict[tuple[int, Matchup], Score] = field(default_factory=dict)
    """Evaluation results by checkpoint iteration, and by environment, opponent and model."""
    ratings: dict[str, Rating] = field(default_factory=dict)
    """The overall rating of each model."""
    turns: int = 0
    """Turns that can be trained on, of all games that have ended."""
    warnings: dict[str, CollapseWarning] = field(default_factory=dict)
    """Signs of a collapse, by event id."""
    same_games: SameGames = field(default_factory=SameGames)
    """The evaluation games that repeat one another."""
    status: RunStatus = field(init=False)
    """The state of the run."""
    _iterations: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.status = RunStatus(self.run_id)
        self.updates = dict.fromkeys(self.config.model_names, 0)

    def apply(self, event: Event) -> None:
        """Fold one event; events of other runs change nothing."""
        if event.run_id != self.run_id:
            return
        self.status.apply(event)
        if isinstance(event, RunStarted):
            before = self.status.updates_before
            self.updates = {model: max(update, before) for model, update in self.updates.items()}
        elif isinstance(event, RunResumed):
            self.latest.updates.clear()  # the pause before is no work
        elif isinstance(event, GameStarted):
            self.in_flight.start(event)
        elif isinstance(event, GameOutcome):
            self._apply_outcome(event)
        elif isinstance(event, GameAbandoned):
            self.in_flight.end(event)
            self.in_flight.abandoned += 1
        elif isinstance(event, Trajectory):
            self.latest.lengths.extend(len(turn.completion_token_ids) // 4 for turn in event.turns)
            if event.split == "train" and event.trained:
                self.turns += len(event.turns)
                self.latest.turns.extend(
                    (turn.format_feedback.get("correct_answer_format", False), turn.valid)
                    for turn in event.turns
                )
        elif isinstance(event, LearnerUpdate):
            if event.update > self.updates.get(event.model, 0):
                self.updates[event.model] = event.update
                self.last_updates[event.model] = event
                self.latest.updates.append((sum(self.updates.values()), event.occurred_at_ms))
        elif isinstance(event, CollapseWarning):
            self.warnings.setdefault(event.event_id, event)
        elif isinstance(event, Checkpoint):
            self._iterations[event.model_uid] = event.iteration
        elif isinstance(event, Rating):
            if event.env_id == OVERALL:
                self.ratings[event.model_uid] = event
        elif isinstance(event, Metrics):
            self.reported.apply(event)

    def _apply_outcome(self, event: GameOutcome) -> None:
        if self.in_flight.has_ended(event):
            return
        self.in_flight.end(event)
        self.games[event.split] = self.games.get(event.split, 0) + 1
        turns = sum(result.turns for result in event.seats if result.trained)
        self.latest.add_end(event.occurred_at_ms, turns)
        same = self.same_games.add(event) if event.split == "eval" else None
        rewards = {result.seat: result.reward for result in event.seats}
        for result in one_of_each_side(event.seats):
            partners = [each.seat for each in event.seats if are_partners(each, result)]
            others = [reward for seat, reward in rewards.items() if seat not in partners] or [0.0]
            lost_by_invalid = event.invalid_seat in partners
            if same is not None and result.model_uid == event.evaluated_uid:
                opponent = next((r.model_uid for r in event.seats if r.seat not in partners), "alone")
                matchup = Matchup(event.env_id, opponent, trained_model(result.model_uid))
                score = self.evaluations.setdefault((result.policy_version or 0, matchup), Score())
                score.add(result.reward, max(others), same, by_invalid=event.invalid_seat is not None)
            elif _tells_of_training(event) and result.trained:
                self.latest.games.append((result.reward > max(others), lost_by_invalid))

    @property
    def update(self) -> int:
        """The number of the newest update that every trained model has made."""
        return min(self.updates.values(), default=0)

    @property
    def games_of_all(self) -> str:
        """The number of games of a round robin that are played, and of all, in words."""
        return f"{self.games['eval']:,} of {self.config.round_robin_games:,} games"

    def seconds_left(self) -> float | None:
        """Return how long the remaining updates take at the pace of the latest; ``None`` before two."""
        if len(self.latest.updates) < 2:
            return None
        iterations = self.config.learner.iterations
        left = sum(max(0, iterations - update) for update in self.updates.values())
        (first, began_ms), (last, ended_ms) = self.latest.updates[0], self.latest.updates[-1]
        return (ended_ms - began_ms) / 1000 / (last - first) * left

    def matchups(self) -> list[Matchup]:
        """Return the matchups of the evaluations so far, in the order of the configuration.

        Opponents that it does not name, such as oneself, come last, by name.
        """
        order = {opponent.name: number for number, opponent in enumerate(self.config.evaluation.opponents)}

        def place(met: Matchup) -> tuple[int, str, str, str]:
            return (order.get(met.opponent, len(order)), met.opponent, met.env_id, met.model or "")

        return sorted({matchup for _, matchup in self.evaluations}, key=place)

    def curve(self, matchup: Matchup) -> list[tuple[int, Score]]:
        """Return the evaluated iterations of a matchup, in order, each with its result so far."""
        points = [
            (iteration, score) for (iteration, met), score in self.evaluations.items() if met == matchup
        ]
        return sorted(points, key=lambda point: point[0])

    def iteration_of(self, model_uid: str) -> int | None:
        """Return the iteration of a checkpoint; ``None`` for fixed opponents."""
        return self._iterations.get(model_uid)

    def ladder(self) -> list[Rating]:
        """Return the overall ratings, best first by the conservative estimate mu - 3 sigma."""
        return sorted(self.ratings.values(), key=lambda rating: rating.mu - 3 * rating.sigma, reverse=True)


def _tells_of_training(event: GameOutcome) -> bool:
    """A game against others, from its beginning."""
    return event.split == "train" and event.position is None and not all(seat.trained for seat in event.seats)
