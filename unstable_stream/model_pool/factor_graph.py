"""TrueSkill's factor graph for games of three or more players, each a team of its own, on plain floats.

Source: Herbrich, Minka, Graepel, "TrueSkill: A Bayesian Skill Rating System", NIPS 2006, figure 1. Messages
are sent in the order of the ``trueskill`` package (Heungsub Lee, BSD licence), and each number is worked out
in the same steps: the results are the package's to the last bit, without its objects and much sooner.

Every variable and message is a normal distribution as precision ``pi`` and precision times mean ``tau``. With
``P`` a player's performance and ``D`` the lead of one performance over the next::

    skill - P0   P1   P2 ...      in order of rank
             \\  / \\  /
              D0   D1   ...       each cut off by the result: beyond the draw margin, or within
"""

import math
from collections.abc import Sequence
from typing import Final

from unstable_stream.model_pool.normal import cdf, pdf

__all__ = ["rate_in_order"]

_MAX_SWEEPS: Final = 10
_CONVERGED: Final = 0.0001


def rate_in_order(
    beliefs: Sequence[tuple[float, float]], drawn: Sequence[bool], *, beta: float, tau: float, margin: float
) -> list[tuple[float, float]]:
    """Return everybody's mean and deviation after a game.

    Args:
        beliefs: mean and deviation of each player before it, the best player first.
        drawn: of each player but the last, whether the next one drew with it.
        beta: deviation of a performance around the skill.
        tau: deviation of the skill's drift since the last game.
        margin: the draw margin in points.

    Raises:
        FloatingPointError: a result so unexpected that float64 has no mass left for it.
    """
    graph = _Graph(beliefs, drawn, beta, tau, margin)
    try:
        graph.sweep()
        return graph.posteriors()
    except (ZeroDivisionError, ValueError) as error:  # a precision that has become 0 or negative
        raise FloatingPointError(str(error)) from error


class _Graph:
    def __init__(
        self,
        beliefs: Sequence[tuple[float, float]],
        drawn: Sequence[bool],
        beta: float,
        tau: float,
        margin: float,
    ) -> None:
        self._drawn = drawn
        self._margin = margin
        self._noise = beta**2
        players = len(beliefs)
        # Skills, and what they tell the performances.
        self._skill: list[tuple[float, float]] = []
        self._told: list[tuple[float, float]] = []
        # Performances, what the skills told them, and what the leads to their left and right did.
        self._pi: list[float] = []
        self._tau: list[float] = []
        for mu, sigma in beliefs:
            rating_pi = sigma**-2
            rating_tau = rating_pi * mu
            prior_sigma = math.sqrt(math.sqrt(1 / rating_pi) ** 2 + tau**2)
            skill_pi = prior_sigma**-2
            skill_tau = skill_pi * (rating_tau / rating_pi)
            share = 1.0 / (1.0 + self._noise * skill_pi)
            told_pi, told_tau = share * skill_pi, share * skill_tau
            self._skill.append((skill_pi, skill_tau))
            self._told.append((told_pi, told_tau))
            pi = 1.0 / (1 / told_pi)
            self._pi.append(pi)
            self._tau.append(pi * (told_tau / told_pi))
        self._from_team = list(zip(self._pi, self._tau, strict=True))
        self._from_left = [(0.0, 0.0)] * players
        self._from_right = [(0.0, 0.0)] * players
        # Leads, what the performances told them, and what the result did.
        self._lead = [(0.0, 0.0)] * (players - 1)
        self._from_players = [(0.0, 0.0)] * (players - 1)
        self._from_result = [(0.0, 0.0)] * (players - 1)

    def sweep(self) -> None:
        """Send messages along the leads, to and fro, until they hardly change."""
        last = len(self._lead) - 1
        for _ in range(_MAX_SWEEPS):
            delta = 0.0
            for place in range(last):
                self._down(place)
                delta = max(delta, self._cut(place))
                self._up_right(place)
            for place in range(last, 0, -1):
                self._down(place)
                delta = max(delta, self._cut(place))
                self._up_left(place)
            if delta <= _CONVERGED:
                break
        self._up_left(0)
        self._up_right(last)

    def _down(self, place: int) -> None:
        """Tell a lead what the performances on both sides make of it."""
        left_pi, left_tau = self._from_right[place]
        right_pi, right_tau = self._from_left[place + 1]
        pi_a, tau_a = self._pi[place] - left_pi, self._tau[place] - left_tau
        pi_b, tau_b = self._pi[place + 1] - right_pi, self._tau[place + 1] - right_tau
        pi, tau = _combine(pi_a, tau_a, pi_b, tau_b, -1.0)
        old_pi, old_tau = self._from_players[place]
        lead_pi, lead_tau = self._lead[place]
        self._from_players[place] = (pi, tau)
        self._lead[place] = ((lead_pi - old_pi) + pi, (lead_tau - old_tau) + tau)

    def _cut(self, place: int) -> float:
        """Cut a lead off by the result; return how much that changed it."""
        lead_pi, lead_tau = self._lead[place]
        old_pi, old_tau = self._from_result[place]
        pi, tau = lead_pi - old_pi, lead_tau - old_tau
        root = math.sqrt(pi)
        difference, margin = tau / root, self._margin * root
        v, w = _draw(difference, margin) if self._drawn[place] else _win(difference - margin)
        rest = 1.0 - w
        new_pi, new_tau = pi / rest, (tau + root * v) / rest
        self._from_result[place] = ((new_pi + old_pi) - lead_pi, (new_tau + old_tau) - lead_tau)
        self._lead[place] = (new_pi, new_tau)
        return max(abs(lead_tau - new_tau), math.sqrt(abs(lead_pi - new_pi)))

    def _up_right(self, place: int) -> None:
        """Tell the performance behind a lead what the lead and the one before make of it."""
        told_pi, told_tau = self._from_right[place]
        pi_a, tau_a = self._pi[place] - told_pi, self._tau[place] - told_tau
        pi_b, tau_b = self._rest_of_lead(place)
        pi, tau = _combine(pi_a, tau_a, pi_b, tau_b, -1.0)
        behind = place + 1
        old_pi, old_tau = self._from_left[behind]
        self._from_left[behind] = (pi, tau)
        self._pi[behind] = (self._pi[behind] - old_pi) + pi
        self._tau[behind] = (self._tau[behind] - old_tau) + tau

    def _up_left(self, place: int) -> None:
        """Tell the performance before a lead what the lead and the one behind make of it."""
        told_pi, told_tau = self._from_left[place + 1]
        pi_a, tau_a = self._rest_of_lead(place)
        pi_b, tau_b = self._pi[place + 1] - told_pi, self._tau[place + 1] - told_tau
        pi, tau = _combine(pi_a, tau_a, pi_b, tau_b, 1.0)
        old_pi, old_tau = self._from_right[place]
        self._from_right[place] = (pi, tau)
        self._pi[place] = (self._pi[place] - old_pi) + pi
        self._tau[place] = (self._tau[place] - old_tau) + tau

    def _rest_of_lead(self, place: int) -> tuple[float, float]:
        lead_pi, lead_tau = self._lead[place]
        old_pi, old_tau = self._from_players[place]
        return lead_pi - old_pi, lead_tau - old_tau

    def posteriors(self) -> list[tuple[float, float]]:
        """Tell the skills what the performances have become, and return them."""
        after = []
        for place, (skill_pi, skill_tau) in enumerate(self._skill):
            team_pi, team_tau = self._from_team[place]
            pi, tau = self._pi[place] - team_pi, self._tau[place] - team_tau
            message_pi = 1.0 / (1.0 / pi) if pi else 0.0
            message_tau = message_pi * (pi and tau / pi)
            told_pi, told_tau = self._told[place]
            # The performance with the message, less what the skill told it.
            pi, tau = (told_pi + message_pi) - told_pi, (told_tau + message_tau) - told_tau
            share = 1.0 / (1.0 + self._noise * pi)
            pi, tau = skill_pi + share * pi, skill_tau + share * tau
            mu, sigma = tau / pi, math.sqrt(1 / pi)
            # Once to and fro, as the package's rating objects do.
            pi = sigma**-2
            after.append(((pi * mu) / pi, math.sqrt(1 / pi)))
        return after


def _combine(pi_a: float, tau_a: float, pi_b: float, tau_b: float, sign: float) -> tuple[float, float]:
    """Return the distribution of ``a + sign * b``."""
    mean = (pi_a and tau_a / pi_a) + sign * (pi_b and tau_b / pi_b)
    if not (pi_a and pi_b):
        return 0.0, 0.0 * mean
    pi = 1.0 / (1.0 / pi_a + 1.0 / pi_b)
    return pi, pi * mean


def _win(x: float) -> tuple[float, float]:
    below = cdf(x)
    v = pdf(x) / below if below else -x
    w = v * (v + x)
    if 0 < w < 1:
        return v, w
    raise FloatingPointError(f"w is {w}")


def _draw(difference: float, margin: float) -> tuple[float, float]:
    distance = abs(difference)
    high, low = margin - distance, -margin - distance
    between = cdf(high) - cdf(low)
    if not between:
        raise FloatingPointError("nothing is left between the margins")
    v = (pdf(low) - pdf(high)) / between
    w = v**2 + (high * pdf(high) - low * pdf(low)) / between
    return (-v if difference < 0 else v), w
