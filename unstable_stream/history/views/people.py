"""The games that people played, and who of them is ahead."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from unstable_stream.archive.read import query
from unstable_stream.log.stores.archive_address import ArchiveAddress

# A game that a person left is abandoned: its reason says in which seat that person was.
_PLAYED: Final = """
SELECT p.game_id, list(CASE p.kind WHEN 'human' THEN p.model_uid ELSE '' END ORDER BY p.seat) AS players,
    list(coalesce(s.result, CASE WHEN a.reason IS NULL THEN NULL
        WHEN starts_with(a.reason, 'the person in seat ' || p.seat || ' ') THEN 'loss'
        WHEN starts_with(a.reason, 'the person in seat ') THEN 'win' END) ORDER BY p.seat) AS results
FROM planned_seats AS p JOIN game_starts AS g USING (game_id) LEFT JOIN game_abandonments AS a USING (game_id)
LEFT JOIN seats AS s ON (s.game_id, s.seat) = (p.game_id, p.seat)
WHERE p.split = 'human' AND epoch(g.started_at) >= $since
GROUP BY p.game_id, g.started_at ORDER BY g.started_at
"""


class PeopleGame(NamedTuple):
    """One game with a person in it."""

    game_id: str
    players: tuple[str, str]
    """The names of the persons, by seat; empty: a checkpoint."""
    results: Sequence[str | None]
    """``win``, ``draw`` or ``loss``, by seat; ``None``: there is none. Who gives up, or runs out of time, has
    lost."""


class PersonStanding(NamedTuple):
    """The results of one person."""

    name: str
    won: int
    drawn: int
    lost: int

    @property
    def points(self) -> float:
        """One for a game won, half of one for a draw."""
        return self.won + self.drawn / 2


def people_games(archive: ArchiveAddress, since: float = 0.0) -> list[PeopleGame]:
    """Return the games with a person in them that began at this moment or later, seconds since the epoch."""
    rows = query(archive, _PLAYED, {"since": since}).rows
    return [PeopleGame(game, (players[0], players[1]), results) for game, players, results in rows]


def standings(games: Sequence[PeopleGame]) -> list[PersonStanding]:
    """Return the standing of each person, the best first; that of checkpoints has no name."""
    counts: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for game in games:
        for player, result in zip(game.players, game.results, strict=True):
            counts[player][result] += 1
    found = [PersonStanding(name, each["win"], each["draw"], each["loss"]) for name, each in counts.items()]
    return sorted(found, key=lambda each: (-each.points, each.lost, each.name))
