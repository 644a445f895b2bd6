"""Say in words who is best, how sure that is, who beats whom in a cycle, and who never met."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final

from unstable_stream.algorithms.intervals import wilson_interval
from unstable_stream.history.views.written import share
from unstable_stream.model_pool.dominance import Meeting, Meetings, cycles
from unstable_stream.model_pool.skill import cdf

ALPHA_RANK: Final = (
    "alpha-rank is each player's share of the time if better players keep replacing worse ones (Omidshafiei "
    "et al., 2019); players that beat each other in a cycle share."
)
_CYCLES: Final = 3
_PAIRS: Final = 3


def probability_ahead(mus: Sequence[float], sigmas: Sequence[float]) -> float | None:
    """Return how probably the first of two ratings is above the second; ``None``: they have no spread."""
    apart = math.hypot(*sigmas)
    return cdf((mus[0] - mus[1]) / apart) if apart > 0 else None


def sure(probability: float | None) -> str:
    """Return a probability in percent, without a claim of certainty."""
    if probability is not None and not 0.001 <= probability <= 0.999:
        return "> 99.9 %" if probability > 0.5 else "< 0.1 %"
    return share(probability)


def bounds(meeting: Meeting) -> tuple[float, float]:
    """Return the 95 % interval of the score: Wilson's."""
    return wilson_interval(meeting.score * meeting.games, meeting.games)


def who_is_best(ranked: Sequence[str], ahead: float | None, meetings: Meetings) -> list[str]:
    """Return the sentences.

    Args:
        ranked: the players, the best first.
        ahead: how probably the first is stronger than the second; ``None``: not known.
        meetings: the results of those that met.
    """
    told = []
    if len(ranked) > 1 and ahead is None:
        told.append(f"{ranked[0]} is first; these ratings do not say how sure that is.")
    elif len(ranked) > 1:
        told.append(
            f"{ranked[0]} is first, stronger than {ranked[1]}, the second, with probability {sure(ahead)}."
        )
    found = cycles(meetings)
    told += [_round(players, meetings) for players in found[:_CYCLES]]
    if len(found) > _CYCLES:
        told.append(f"There are {len(found) - _CYCLES:,} more such cycles.")
    elif not found and len(meetings) > 4:
        told.append("No three players beat each other in a cycle beyond chance.")
    return [*told, *_never_met(ranked, meetings)]


def _round(players: Sequence[str], meetings: Mapping[tuple[str, str], Meeting]) -> str:
    parts = []
    for place, player in enumerate(players):
        met = meetings[player, players[(place + 1) % len(players)]]
        low, high = bounds(met)
        parts.append(f"({share(met.score)} of {met.games:,} games, {share(low)} to {share(high)})")
    a, b, c = players
    return f"A cycle: {a} beats {b} {parts[0]}, which beats {c} {parts[1]}, which beats {a} {parts[2]}."


def _never_met(ranked: Sequence[str], meetings: Meetings) -> list[str]:
    pairs = len(ranked) * (len(ranked) - 1) // 2
    missing = [pair for pair in combinations(ranked, 2) if pair not in meetings]
    if not missing:
        return []
    named = ", ".join(f"{one} and {other}" for one, other in missing[:_PAIRS])
    more = f", and {len(missing) - _PAIRS:,} more" if len(missing) > _PAIRS else ""
    return [f"{len(missing):,} of {pairs:,} pairs never met: {named}{more}. Nothing is assumed about them."]
