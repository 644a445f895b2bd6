"""Rate teams: seats that win and lose together.

Source: Herbrich, Minka, Graepel, "TrueSkill: A Bayesian Skill Rating System", NIPS 2006, section 2: a team
performs as the sum of its players. For two teams the factor graph is a chain without branches before the
comparison, so the update has a closed form. With ``n`` the seats of a model on the first side less those on
the second, all that such a game says is about the sum of ``n`` times skill over the models: one that sits on
both sides equally often learns nothing, and one that sits on both unequally often learns by the seats it has
more on one. Sides that one model plays alone say nothing, however unequal: the sum would take a lost game of
four seats against two for a proof that its skill is below zero.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from unstable_stream.model_pool.skill import Belief, TrueSkill, correction, mean_beliefs
from unstable_stream.model_pool.systems import RatingSystem


@dataclass(frozen=True, slots=True)
class Side:
    """Those who win and lose together: a team, or one seat that plays for itself."""

    seats: Mapping[int, int]
    """By model, the number of its seats."""
    rank: int
    """0 is best."""


def sides_of(models: Sequence[int], ranks: Sequence[int], teams: Sequence[int]) -> list[Side]:
    """Return the sides of a game from its columns of seats, in the order of their first seats."""
    members: dict[int, list[int]] = {}
    best: dict[int, int] = {}
    for seat, (model, rank, team) in enumerate(zip(models, ranks, teams, strict=True)):
        side = team if team >= 0 else -1 - seat
        members.setdefault(side, []).append(model)
        best[side] = min(rank, best.get(side, rank))
    return [Side(Counter(those), best[side]) for side, those in members.items()]


def shares_of(one: Side, other: Side) -> dict[int, int]:
    """Return by model its seats on one side less those on the other, without those that are even.

    Empty where one model plays both sides.
    """
    if len({*one.seats, *other.seats}) < 2:
        return {}
    shares = {
        model: one.seats.get(model, 0) - other.seats.get(model, 0)
        for model in sorted({*one.seats, *other.seats})
    }
    return {model: share for model, share in shares.items() if share}


def rate_sides(
    system: RatingSystem, env_id: str, beliefs: Mapping[int, Belief], sides: Sequence[Side]
) -> dict[int, Belief]:
    """Return the belief about each model after a game; those that played on all sides alike are left out.

    Of three sides and more each pair is rated, and a model's updates are averaged. A system other than
    TrueSkill takes a side that one model plays for one player; one that several play, for each of them.
    """
    rated: dict[int, list[Belief]] = {}
    for one, other in combinations(sides, 2):
        shares = shares_of(one, other)
        if not shares:
            continue  # the same on both sides: nobody played against anybody else
        if isinstance(system, TrueSkill):
            after = _rate_two(system, env_id, beliefs, shares, one, other)
        else:
            after = _rate_each(system, env_id, beliefs, shares, one, other)
        for model, belief in after.items():
            rated.setdefault(model, []).append(belief)
    return mean_beliefs(rated)


def _rate_two(
    system: TrueSkill,
    env_id: str,
    beliefs: Mapping[int, Belief],
    shares: Mapping[int, int],
    one: Side,
    other: Side,
) -> dict[int, Belief]:
    seats = sum(one.seats.values()) + sum(other.seats.values())
    sign = -1 if other.rank < one.rank else 1
    tau_squared = system.tau * system.tau
    variances = {model: beliefs[model][1] ** 2 + tau_squared for model in shares}
    c_squared = math.fsum(
        [seats * system.beta**2, *(share**2 * variances[model] for model, share in shares.items())]
    )
    c = math.sqrt(c_squared)
    difference = math.fsum(sign * share * beliefs[model][0] for model, share in shares.items()) / c
    margin = system.draw_margin(env_id, seats) / c
    v, w = correction(difference, margin, drawn=one.rank == other.rank)
    return {
        model: (
            beliefs[model][0] + sign * share * variances[model] / c * v,
            math.sqrt(variances[model] * (1.0 - share**2 * variances[model] / c_squared * w)),
        )
        for model, share in shares.items()
    }


def _rate_each(
    system: RatingSystem,
    env_id: str,
    beliefs: Mapping[int, Belief],
    shares: Mapping[int, int],
    one: Side,
    other: Side,
) -> dict[int, Belief]:
    """Rate each model of one side against each of the other, and average."""
    update, drawn = system.pair(env_id), one.rank == other.rank
    winner, loser = (other, one) if other.rank < one.rank else (one, other)
    rated: dict[int, list[Belief]] = {}
    for a in sorted(set(winner.seats) & set(shares)):
        for b in sorted(set(loser.seats) & set(shares)):
            if a == b:
                continue
            mu_a, sigma_a, mu_b, sigma_b = update(*beliefs[a], *beliefs[b], drawn)
            rated.setdefault(a, []).append((mu_a, sigma_a))
            rated.setdefault(b, []).append((mu_b, sigma_b))
    return mean_beliefs(rated)
