"""TrueSkill updates: a closed form for two players, the ``trueskill`` package for more.

Source: Herbrich, Minka, Graepel, "TrueSkill: A Bayesian Skill Rating System", NIPS 2006; the two-player
equations are its section 3 with one player a team. For two players the factor graph needs one pass, so
the closed form is exact, and about a hundred times faster than building the graph.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from statistics import NormalDist
from typing import Final, NamedTuple

import trueskill

from unstable_stream.errors import ConfigError

_SQRT_2: Final = math.sqrt(2.0)
_SQRT_2_PI: Final = math.sqrt(2.0 * math.pi)

inverse_cdf = NormalDist().inv_cdf


def pdf(x: float) -> float:
    """Return the standard normal density at ``x``."""
    return math.exp(-0.5 * x * x) / _SQRT_2_PI


def cdf(x: float) -> float:
    """Return the standard normal mass below ``x``."""
    return 0.5 * math.erfc(-x / _SQRT_2)  # erfc keeps its relative precision far out in the lower tail


class Skill(NamedTuple):
    """A normal belief about a model's strength."""

    mu: float
    sigma: float


def check_settings(system: str, settings: object, positive: Sequence[str], others: Sequence[str]) -> None:
    """Raise :class:`ConfigError` where a setting is not above 0, or one of the others not at least 0."""
    for name in (*positive, *others):
        value = getattr(settings, name)
        if not (math.isfinite(value) and (value > 0.0 or (value == 0.0 and name in others))):
            least = "of at least 0" if name in others else "above 0"
            raise ConfigError(f"{system} {name} is {value}, expected a number {least}")


@dataclass(frozen=True)
class TrueSkillSettings:
    """Parameters of the model; the defaults are the paper's."""

    mu: float = 25.0
    """Mean of a model never seen."""
    sigma: float = 25.0 / 3.0
    """Standard deviation of a model never seen."""
    beta: float = 25.0 / 6.0
    """Standard deviation of one game's performance around the skill."""
    tau: float = 0.0
    """Standard deviation of the skill's drift between games. A model here never changes (each checkpoint is
    a model of its own), so there is none; the package's default of 25/300 is for people, who learn."""
    draw_probability: Mapping[str, float] = field(default_factory=dict)
    """Probability that two equal models draw, by environment."""
    default_draw_probability: float = 0.1
    """The same for every other environment."""
    inherited_sigma: float = 25.0 / 12.0
    """A new checkpoint starts at its parent's ``mu``, with this much uncertainty (a standard deviation)
    added: one update may have changed it by about half a ``beta``."""

    def __post_init__(self) -> None:
        check_settings("TrueSkill", self, positive=("sigma", "beta"), others=("tau", "inherited_sigma"))
        for env_id, p in (("default", self.default_draw_probability), *self.draw_probability.items()):
            if not 0.0 < p < 1.0:
                # At 0 a draw would be an impossible event with no defined update.
                raise ConfigError(f"draw_probability of {env_id} is {p}, expected a number between 0 and 1")

    @cached_property
    def default(self) -> Skill:
        """Return the belief about a model never seen."""
        return Skill(self.mu, self.sigma)

    def inherited(self, parent: Skill) -> Skill:
        """Return the first belief about a child of ``parent``, never less certain than a stranger's."""
        return Skill(parent.mu, min(self.sigma, math.hypot(parent.sigma, self.inherited_sigma)))

    def draw_probability_of(self, env_id: str) -> float:
        """Return the draw probability for an environment."""
        return self.draw_probability.get(env_id, self.default_draw_probability)


def rate_game(
    settings: TrueSkillSettings, env_id: str, players: Mapping[str, Skill], ranks: Mapping[str, float]
) -> dict[str, Skill]:
    """Return every player's belief after one game among distinct players, each on its own.

    Equal ranks draw. The result does not depend on the order of ``players``. A lone player is returned
    unchanged.

    Args:
        settings: parameters.
        env_id: picks the draw probability.
        players: model uid to belief before the game.
        ranks: model uid to rank, lower is better; only the order counts.
    """
    draw_probability = settings.draw_probability_of(env_id)
    uids = sorted(players, key=lambda uid: (ranks[uid], uid))
    if len(uids) < 2:
        return dict(players)
    if len(uids) == 2:
        first, second = uids
        drawn = ranks[first] == ranks[second]
        return dict(
            zip(
                uids,
                rate_pair(settings, draw_probability, players[first], players[second], drawn=drawn),
                strict=True,
            )
        )
    try:
        return _rate_many(settings, draw_probability, uids, players, ranks)
    except (FloatingPointError, ValueError, ZeroDivisionError):  # a precision that has become 0 or negative
        return _rate_by_pairs(settings, draw_probability, uids, players, ranks)


def rate_pair(
    settings: TrueSkillSettings, draw_probability: float, winner: Skill, loser: Skill, *, drawn: bool
) -> tuple[Skill, Skill]:
    """Return both beliefs after a game of two; of a draw, ``winner`` and ``loser`` are just names."""
    mu_w, sigma_w, mu_l, sigma_l = update_pair(
        2.0 * settings.beta * settings.beta,
        settings.tau * settings.tau,
        draw_margin(settings, draw_probability),
        winner.mu,
        winner.sigma,
        loser.mu,
        loser.sigma,
        drawn,
    )
    return Skill(mu_w, sigma_w), Skill(mu_l, sigma_l)


def draw_margin(settings: TrueSkillSettings, draw_probability: float, seats: int = 2) -> float:
    """Return the draw margin between two sides with so many seats together, in points."""
    return _margin_in_beta(draw_probability) * settings.beta * math.sqrt(seats / 2)


def update_pair(
    noise: float,
    tau_squared: float,
    margin: float,
    mu_w: float,
    sigma_w: float,
    mu_l: float,
    sigma_l: float,
    drawn: bool,
) -> tuple[float, float, float, float]:
    """Return both beliefs after a game of two, as plain numbers for whoever rates millions of games.

    ``noise`` is the variance of a game, ``2 beta**2``; ``margin`` the draw margin in points.
    """
    variance_w = sigma_w * sigma_w + tau_squared
    variance_l = sigma_l * sigma_l + tau_squared
    c_squared = (variance_w + variance_l) + noise
    c = math.sqrt(c_squared)
    difference = (mu_w - mu_l) / c
    v, w = _draw_correction(difference, margin / c) if drawn else _win_correction(difference - margin / c)
    return (
        mu_w + variance_w / c * v,
        math.sqrt(variance_w * (1.0 - variance_w / c_squared * w)),
        mu_l - variance_l / c * v,
        math.sqrt(variance_l * (1.0 - variance_l / c_squared * w)),
    )


def match_quality(settings: TrueSkillSettings, a: Skill, b: Skill) -> float:
    """Return how likely a draw is, relative to two players of equal, certain skill: in (0, 1]."""
    noise = 2.0 * settings.beta * settings.beta
    c_squared = noise + a.sigma * a.sigma + b.sigma * b.sigma
    return math.sqrt(noise / c_squared) * math.exp(-((a.mu - b.mu) ** 2) / (2.0 * c_squared))


def correction(difference: float, margin: float, *, drawn: bool) -> tuple[float, float]:
    """Return ``v`` and ``w`` of the paper for a difference and a draw margin in units of its deviation."""
    return _draw_correction(difference, margin) if drawn else _win_correction(difference - margin)


@lru_cache(maxsize=256)
def _margin_in_beta(draw_probability: float) -> float:
    """The draw margin of two players, in units of beta (equation after (1) in the paper)."""
    return inverse_cdf((draw_probability + 1.0) / 2.0) * _SQRT_2


def _win_correction(x: float) -> tuple[float, float]:
    """``v`` and ``w`` for a win, ``x`` the difference beyond the margin."""
    below = cdf(x)
    if below < 1e-300:
        # So unexpected that the ratio is 0/0: take its limit.
        return -x, 1.0
    v = pdf(x) / below
    return v, min(1.0, max(0.0, v * (v + x)))


def _draw_correction(difference: float, margin: float) -> tuple[float, float]:
    """``v`` and ``w`` for a draw; ``v`` is odd in the difference, so that the order does not matter."""
    distance = abs(difference)
    sign = -1.0 if difference < 0.0 else 1.0
    high, low = margin - distance, -margin - distance
    between = cdf(high) - cdf(low)
    if between < 1e-300:
        return sign * high, 1.0
    pdf_high, pdf_low = pdf(high), pdf(low)
    v = (pdf_low - pdf_high) / between
    w = v * v + (high * pdf_high - low * pdf_low) / between
    return sign * v, min(1.0, max(0.0, w))


def _rate_many(
    settings: TrueSkillSettings,
    draw_probability: float,
    uids: Sequence[str],
    players: Mapping[str, Skill],
    ranks: Mapping[str, float],
) -> dict[str, Skill]:
    """Rate three or more players by the ``trueskill`` package, ``uids`` sorted by rank and name.

    Its factor graph compares neighbours only, so within a tie the result depends on who sits in the
    middle. Every rotation of the tied players is rated and the results averaged, which gives equal
    players equal updates.
    """
    environment = trueskill.TrueSkill(
        beta=settings.beta,
        tau=settings.tau,
        draw_probability=draw_probability,
        # The package's own approximation of erfc is good to seven digits only.
        backend=(cdf, pdf, inverse_cdf),
    )
    ties = [list(tied) for _, tied in groupby(uids, key=ranks.__getitem__)]
    rotations = math.lcm(*map(len, ties))
    mus = dict.fromkeys(uids, 0.0)
    sigmas = dict.fromkeys(uids, 0.0)
    for turn in range(rotations):
        order = [tie[(place + turn) % len(tie)] for tie in ties for place in range(len(tie))]
        teams = [(trueskill.Rating(*players[uid]),) for uid in order]
        for uid, (rating,) in zip(order, environment.rate(teams, [ranks[uid] for uid in order]), strict=True):
            mus[uid] += rating.mu / rotations
            sigmas[uid] += rating.sigma / rotations
    return {uid: Skill(mus[uid], sigmas[uid]) for uid in uids}


def _rate_by_pairs(
    settings: TrueSkillSettings,
    draw_probability: float,
    uids: Sequence[str],
    players: Mapping[str, Skill],
    ranks: Mapping[str, float],
) -> dict[str, Skill]:
    """Average each player's two-player updates against all others.

    Stands in where the factor graph's arithmetic breaks down: results so unexpected that a truncated
    normal has no mass left in float64.
    """
    rated = {}
    for uid in uids:
        skills = []
        for other in uids:
            if other == uid:
                continue
            drawn = ranks[uid] == ranks[other]
            if drawn or ranks[uid] < ranks[other]:
                skill, _ = rate_pair(settings, draw_probability, players[uid], players[other], drawn=drawn)
            else:
                _, skill = rate_pair(settings, draw_probability, players[other], players[uid], drawn=False)
            skills.append(skill)
        rated[uid] = Skill(
            math.fsum(s.mu for s in skills) / len(skills), math.fsum(s.sigma for s in skills) / len(skills)
        )
    return rated
