"""Results beyond chance: cycles of players who beat each other, and the worth of each among all."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np

_Z: Final = 1.959963984540054
_NOISE: Final = 0.01
"""The probability that a worse player replaces a better one: OpenSpiel's default of ``inf_alpha_eps``."""


class Meeting(NamedTuple):
    """The games of one player against another."""

    score: float
    """The mean of 1 for a win, 0.5 for a draw and 0 for a loss."""
    games: int
    """Games that repeat others, move by move, count once."""

    @property
    def deviation(self) -> float:
        """The distance of the score above one half, in standard deviations of games of equals.

        Wilson's interval of the score excludes one half where this is beyond its quantile.
        """
        return 2.0 * (self.score - 0.5) * math.sqrt(self.games)

    @property
    def beats(self) -> bool:
        """Return whether the 95 % interval of the score is above one half."""
        return self.deviation > _Z


Meetings: TypeAlias = Mapping[tuple[str, str], Meeting]
"""By player and opponent; both orders are there, none of players that never met."""


def cycles(meetings: Meetings) -> list[tuple[str, str, str]]:
    """Return all rounds of three players who each beat the next, the surest first.

    A round is as sure as the least sure of its three results, and begins with the first name.
    """
    beaten: dict[str, list[str]] = {}
    for (player, opponent), meeting in sorted(meetings.items()):
        if meeting.beats:
            beaten.setdefault(player, []).append(opponent)
    found = [
        (-min(meetings[pair].deviation for pair in ((a, b), (b, c), (c, a))), (a, b, c))
        for a in beaten
        for b in beaten[a]
        for c in beaten.get(b, ())
        if a < min(b, c) and a in beaten.get(c, ())
    ]
    return [players for _, players in sorted(found)]


def alpha_rank(meetings: Meetings) -> dict[str, float]:
    """Return each player's share of the time in the end, if better players keep replacing worse ones.

    One population of players, in which another player tries its luck from time to time and takes over if it
    beats the one that is there. The shares add up to 1; players that beat each other in a cycle share. This
    is alpha-rank (Omidshafiei et al., 2019, Scientific Reports 9, arXiv:1903.01373) with infinite ranking
    intensity, and noise as in OpenSpiel (``alpharank.compute`` with ``use_inf_alpha``): a better player takes
    over with probability 0.99, a worse one with 0.01. Two players whose scores do not differ beyond chance
    are equals, one half. Between players that never met nobody is replaced.

    Nothing is returned where some players are linked with others by no chain of meetings.
    """
    players = sorted({player for player, _ in meetings})
    linked = {*players[:1]}
    while more := {opponent for player, opponent in meetings if player in linked} - linked:
        linked |= more
    if len(linked) < len(players) or not players:
        return {}
    place = {player: number for number, player in enumerate(players)}
    flow = np.zeros((len(players), len(players)))
    for (new, old), meeting in meetings.items():
        worse = meetings[old, new].beats
        flow[place[new], place[old]] = 1 - _NOISE if meeting.beats else _NOISE if worse else 0.5
    # The share that moves to each player is the share that moves away; in place of one equation, which
    # follows from the others, all shares add up to 1.
    flow -= np.diag(flow.sum(axis=0))
    flow[-1] = 1.0
    shares = np.linalg.solve(flow, np.eye(len(players))[-1])
    return dict(zip(players, map(float, shares), strict=True))
