"""The standings of a tournament: a fold of evaluation games, and strengths refit over all of them."""

from dataclasses import asdict, astuple, dataclass, field

from unstable_stream.events import OVERALL, Event, GameOutcome, Rating, SeatResult, are_partners
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.model_pool.bradley_terry import bradley_terry
from unstable_stream.model_pool.results import one_of_each_side
from unstable_stream.model_pool.same_games import SameGames, Surplus


@dataclass(slots=True)
class PairResult:
    """One player's games against another one, or against all."""

    wins: int = 0
    draws: int = 0
    losses: int = 0
    wins_by_invalid: int = 0
    """Of the wins, those by the other's invalid move."""
    losses_by_invalid: int = 0
    """Of the losses, those by an invalid move of its own."""

    @property
    def games(self) -> int:
        """The number of all games."""
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """The mean over games of 1 for a win, 0.5 for a draw and 0 for a loss; 0.5 without games."""
        return (self.wins + self.draws / 2) / self.games if self.games else 0.5


@dataclass(frozen=True, slots=True)
class Standing:
    """One player's row of the ladder."""

    rank: int
    """1 is best, by ``elo``."""
    player: str
    games: int
    score: float
    """The mean of 1 for a win, 0.5 for a draw, 0 for a loss."""
    wins: int
    draws: int
    losses: int
    wins_by_invalid: int
    """Of the wins, those by the opponent's invalid move."""
    losses_by_invalid: int
    """Of the losses, those by an invalid move of its own."""
    elo: float
    """Bradley-Terry strength over all games, in Elo points; the mean of the players is 0. Games that repeat
    others, move by move, count once."""
    elo_low: float
    """Lower bound of its 95 % interval."""
    elo_high: float
    mu: float | None
    """Skill over all games by the run's rating system; ``None``: not rated yet."""
    sigma: float | None
    against: dict[str, float] = field(default_factory=dict)
    """Score against each opponent met, in the order of the ladder."""


class Standings:
    """The fold. Pass it the events of one run, in any topic order; only evaluation games count.

    In games of more than two seats each pair of seats counts, and a team's seats of one model count as one; a
    model against itself does not.
    """

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str], PairResult] = {}
        """By player and opponent; both orders are there."""
        self._same_games = SameGames()
        self._surplus: dict[tuple[str, str], Surplus] = {}
        """Of the scores in :attr:`pairs`, what repeats others."""
        self._seen = IndexSet()
        self._ratings: dict[str, Rating] = {}

    def apply(self, event: Event) -> None:
        """Fold one event; games seen before change nothing."""
        if isinstance(event, Rating) and event.env_id == OVERALL:
            known = self._ratings.get(event.model_uid)
            if known is None or event.games > known.games:
                self._ratings[event.model_uid] = event
        elif isinstance(event, GameOutcome) and event.split == "eval" and self._seen.add(event.game_index):
            same = self._same_games.add(event)
            seats = one_of_each_side(event.seats)
            for mine in seats:
                for other in seats:
                    if mine.model_uid == other.model_uid or are_partners(mine, other):
                        continue
                    pair = (mine.model_uid, other.model_uid)
                    result = self.pairs.setdefault(pair, PairResult())
                    score = ((mine.rank < other.rank) - (mine.rank > other.rank) + 1) / 2
                    self._surplus.setdefault(pair, Surplus()).add(same, score)
                    if mine.rank < other.rank:
                        result.wins += 1
                        result.wins_by_invalid += _lost_by_invalid(event, other)
                    elif mine.rank > other.rank:
                        result.losses += 1
                        result.losses_by_invalid += _lost_by_invalid(event, mine)
                    else:
                        result.draws += 1

    def ladder(self) -> list[Standing]:
        """Return everybody who played, the strongest first."""
        players = sorted({player for player, _ in self.pairs})
        none = PairResult()
        results = [[self.pairs.get((a, b), none) for b in players] for a in players]
        strengths = bradley_terry([[self._counted((a, b)) for b in players] for a in players])
        best_first = sorted(range(len(players)), key=lambda place: (-strengths[place].elo, players[place]))
        rows = []
        for rank, place in enumerate(best_first, 1):
            total = PairResult(*map(sum, zip(*map(astuple, results[place]), strict=True)))
            rating = self._ratings.get(players[place])
            rows.append(
                Standing(
                    rank=rank,
                    player=players[place],
                    games=total.games,
                    score=total.score,
                    **asdict(total),
                    elo=strengths[place].elo,
                    elo_low=strengths[place].low,
                    elo_high=strengths[place].high,
                    mu=rating.mu if rating is not None else None,
                    sigma=rating.sigma if rating is not None else None,
                    against={
                        players[other]: results[place][other].score
                        for other in best_first
                        if results[place][other].games
                    },
                )
            )
        return rows

    def _counted(self, pair: tuple[str, str]) -> float:
        """Return one's score against the other, where games that repeat others count once."""
        result = self.pairs.get(pair)
        return 0.0 if result is None else result.games * result.score - self._surplus[pair].total()[1]


def _lost_by_invalid(event: GameOutcome, seat: SeatResult) -> bool:
    """Return whether an invalid move of the seat, or of a partner, ended the game."""
    return any(each.seat == event.invalid_seat for each in event.seats if are_partners(each, seat))
