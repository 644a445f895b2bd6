"""Choose positions of finished training games to play on from: a fold of the schedule's events."""

import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from unstable_stream.events import Action, GameOutcome, GamePosition, GameStarted, SeatResult
from unstable_stream.events.seeds import derive_seed
from unstable_stream.runs.sections import CollectorConfig


class Branched(msgspec.Struct, frozen=True, kw_only=True):
    """A position of a finished training game, from which games are still to be started."""

    env_id: str
    seats: tuple[SeatResult, ...]
    position: GamePosition
    moves: tuple[Action, ...]
    game_index: int
    """Of the game that has it."""


class BranchesState(msgspec.Struct, frozen=True):
    """The result of :meth:`Branches.state`."""

    chosen: tuple[Branched, ...] = ()
    begun: dict[str, int] = {}


class Branches:
    """The positions from which games are still to be started, whatever the order of the events."""

    def __init__(self, settings: CollectorConfig) -> None:
        self._settings = settings
        self._chosen: dict[str, Branched] = {}
        """By the game that has the position."""
        self._begun = Counter[str]()
        """By that game, the number of games from there, until all are started. Its end may be read later."""

    def choose(self, ended: GameOutcome) -> None:
        """Take in the end of a training game, once: choose a position of it, unless it is a branch."""
        if not self._settings.branches or ended.position is not None:
            return
        rng = random.Random(derive_seed(ended.seed, "branch"))
        mine = {seat.seat for seat in ended.seats if seat.trained}
        turns = [turn for turn, action in enumerate(ended.actions) if action.seat in mine]
        if not turns or rng.random() >= self._settings.branch_share:
            return
        turn = rng.choice(turns)
        if self._settings.branch_at == "unsure" and ended.least_likely_turn is not None:
            turn = ended.least_likely_turn
        self._chosen[ended.game_id] = Branched(
            env_id=ended.env_id,
            game_index=ended.game_index,
            seats=ended.seats,
            position=GamePosition(game_id=ended.game_id, turn=turn, seed=ended.seed, moves=turn),
            moves=ended.actions[:turn],
        )
        self._settle(ended.game_id)

    def begin(self, game: GameStarted) -> None:
        """Take in the start of a game, once."""
        if game.split == "train" and game.position is not None:
            self._begun[game.position.game_id] += 1
            self._settle(game.position.game_id)

    def _settle(self, game_id: str) -> None:
        """Forget a position from which all games are started."""
        if game_id in self._chosen and self._begun[game_id] >= self._settings.branches:
            del self._chosen[game_id], self._begun[game_id]

    def wanted(self) -> Iterator[Branched]:
        """Yield a position for each game still to be started from it, those of earlier games first."""
        for branched in self._in_order():
            for _ in range(self._settings.branches - self._begun[branched.position.game_id]):
                yield branched

    def _in_order(self) -> list[Branched]:
        return sorted(self._chosen.values(), key=lambda each: each.game_index)

    def state(self) -> BranchesState:
        """Return the state of the fold."""
        return BranchesState(tuple(self._in_order()), dict(sorted((+self._begun).items())))

    def load_state(self, state: BranchesState) -> None:
        """Go on from a state of this fold."""
        self._chosen = {branched.position.game_id: branched for branched in state.chosen}
        self._begun = Counter(state.begun)
