"""The standings of a tournament: a fold of evaluation games, and strengths refit over all of them."""

from dataclasses import asdict, astuple, dataclass, field
from itertools import pairwise
from typing import NamedTuple

from unstable_stream.events import OVERALL, Event, GameOutcome, Rating, SeatResult, are_partners
from unstable_stream.events.id_sets import IndexSet
from unstable_stream.model_pool.bradley_terry import Strength, bradley_terry
from unstable_stream.model_pool.dominance import Meeting, Meetings, alpha_rank
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
class Tally:
    """One player's wins and losses against all others."""

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


@dataclass(frozen=True, slots=True)
class Standing(Tally):
    """One player's row of the ladder."""

    elo: float
    """Bradley-Terry strength over all games, in Elo points; the mean of the players is 0. Games that repeat
    others, move by move, count once."""
    elo_low: float
    """Lower bound of its 95 % interval."""
    elo_high: float
    ahead_of_next: float | None
    """The probability that it is stronger than the next of the ladder; ``None``: the last."""
    alpha_rank: float | None
    """Its share by :func:`~unstable_stream.model_pool.dominance.alpha_rank`; ``None``: players are missing
    meetings that would link all of them."""
    mu: float | None
    """Skill over all games by the run's rating system; ``None``: not rated yet."""
    sigma: float | None
    against: dict[str, float] = field(default_factory=dict)
    """Score against each opponent met, in the order of the ladder."""


class Placed(NamedTuple):
    """A player's place among all, without the results themselves."""

    player: str
    strength: Strength
    ahead_of_next: float | None
    """The probability that it is stronger than the next; ``None``: the last."""


def by_strength(meetings: Meetings) -> list[Placed]:
    """Return everybody who met somebody, the strongest first."""
    players = sorted({player for player, _ in meetings})
    none = Meeting(0.0, 0)
    met = [[meetings.get((one, other), none) for other in players] for one in players]
    strengths = bradley_terry([[cell.score * cell.games for cell in row] for row in met])
    order = sorted(range(len(players)), key=lambda place: (-strengths[place].elo, players[place]))
    return [
        Placed(players[place], strengths[place], None if after is None else strengths[place].ahead[after])
        for place, after in pairwise([*order, None])
        if place is not None
    ]


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
        placed = by_strength(self.meetings())
        players = [each.player for each in placed]
        none = PairResult()
        shares = alpha_rank(self.meetings())
        rows = []
        for rank, (player, strength, ahead) in enumerate(placed, 1):
            results = {other: self.pairs.get((player, other), none) for other in players}
            total = PairResult(*map(sum, zip(*map(astuple, results.values()), strict=True)))
            rating = self._ratings.get(player)
            rows.append(
                Standing(
                    rank=rank,
                    player=player,
                    games=total.games,
                    score=total.score,
                    **asdict(total),
                    elo=strength.elo,
                    elo_low=strength.low,
                    elo_high=strength.high,
                    ahead_of_next=ahead,
                    alpha_rank=shares.get(player),
                    mu=rating.mu if rating is not None else None,
                    sigma=rating.sigma if rating is not None else None,
                    against={other: result.score for other, result in results.items() if result.games},
                )
            )
        return rows

    def meetings(self) -> dict[tuple[str, str], Meeting]:
        """Return how each player did against each other one, games that repeat others counted once."""
        points = {pair: self._counted(pair) for pair in self.pairs}
        games = {(one, other): round(points[one, other] + points[other, one]) for one, other in points}
        return {pair: Meeting(points[pair] / games[pair], games[pair]) for pair in points}

    def _counted(self, pair: tuple[str, str]) -> float:
        """Return one's score against the other, where games that repeat others count once."""
        result = self.pairs.get(pair)
        return 0.0 if result is None else result.games * result.score - self._surplus[pair].total()[1]


def _lost_by_invalid(event: GameOutcome, seat: SeatResult) -> bool:
    """Return whether an invalid move of the seat, or of a partner, ended the game."""
    return any(each.seat == event.invalid_seat for each in event.seats if are_partners(each, seat))
