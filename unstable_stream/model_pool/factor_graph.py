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

from unstable_stream.model_pool.normal import SQRT_2, SQRT_2_PI, cdf, pdf

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
        graph.send()
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
        self._noise = noise = beta**2
        drift = tau**2
        players = len(beliefs)
        # Skills, and what they tell the performances.
        self._skill: list[tuple[float, float, float, float]] = []
        # Performances.
        self._pi: list[float] = []
        self._tau: list[float] = []
        for mu, sigma in beliefs:
            rating_pi = sigma**-2
            rating_tau = rating_pi * mu
            prior_sigma = math.sqrt(math.sqrt(1 / rating_pi) ** 2 + drift)
            skill_pi = prior_sigma**-2
            skill_tau = skill_pi * (rating_tau / rating_pi)
            share = 1.0 / (1.0 + noise * skill_pi)
            told_pi, told_tau = share * skill_pi, share * skill_tau
            self._skill.append((skill_pi, skill_tau, told_pi, told_tau))
            pi = 1.0 / (1 / told_pi)
            self._pi.append(pi)
            self._tau.append(pi * (told_tau / told_pi))
        # What the skills told the performances, and what the leads to their left and right did.
        self._from_team = list(zip(self._pi, self._tau, strict=True))
        self._left_pi, self._left_tau = [0.0] * players, [0.0] * players
        self._right_pi, self._right_tau = [0.0] * players, [0.0] * players

    def send(self) -> None:
        """Send messages along the leads, to and fro, until they hardly change."""
        # One body for all messages of a lead, and plain lists: a game of four takes some fifteen of them, and
        # calls and tuples took most of the time. What is named once here is used again with the same bits.
        pis, taus = self._pi, self._tau
        left_pis, left_taus, right_pis, right_taus = (
            self._left_pi,
            self._left_tau,
            self._right_pi,
            self._right_tau,
        )
        drawn, margin = self._drawn, self._margin
        sqrt, exp, erfc = math.sqrt, math.exp, math.erfc
        leads = len(pis) - 1
        # Leads, what the performances told them, and what the result did.
        lead_pis, lead_taus = [0.0] * leads, [0.0] * leads
        told_pis, told_taus = [0.0] * leads, [0.0] * leads
        cut_pis, cut_taus = [0.0] * leads, [0.0] * leads
        last = leads - 1
        route = [(place, True) for place in range(last)] + [(place, False) for place in range(last, 0, -1)]
        for _ in range(_MAX_SWEEPS):
            delta = 0.0
            for place, onwards in route:
                behind = place + 1
                # What the performances on both sides make of the lead.
                pi_a, tau_a = pis[place] - right_pis[place], taus[place] - right_taus[place]
                pi_b, tau_b = pis[behind] - left_pis[behind], taus[behind] - left_taus[behind]
                mean_a = tau_a / pi_a if pi_a else pi_a
                mean_b = tau_b / pi_b if pi_b else pi_b
                told_pi = 1.0 / (1.0 / pi_a + 1.0 / pi_b) if pi_a and pi_b else 0.0
                told_tau = told_pi * (mean_a - mean_b)
                lead_pi = (lead_pis[place] - told_pis[place]) + told_pi
                lead_tau = (lead_taus[place] - told_taus[place]) + told_tau
                told_pis[place], told_taus[place] = told_pi, told_tau
                # Cut the lead off by the result.
                old_pi, old_tau = cut_pis[place], cut_taus[place]
                pi, tau = lead_pi - old_pi, lead_tau - old_tau
                root = sqrt(pi)
                x, edge = tau / root, margin * root
                if drawn[place]:
                    v, w = _draw(x, edge)
                else:
                    x -= edge
                    below = 0.5 * erfc(-x / SQRT_2)
                    v = exp(-0.5 * x * x) / SQRT_2_PI / below if below else -x
                    w = v * (v + x)
                    if not 0 < w < 1:
                        raise FloatingPointError(f"w is {w}")
                rest = 1.0 - w
                new_pi, new_tau = pi / rest, (tau + root * v) / rest
                cut_pis[place], cut_taus[place] = (new_pi + old_pi) - lead_pi, (new_tau + old_tau) - lead_tau
                lead_pis[place], lead_taus[place] = new_pi, new_tau
                change = abs(lead_tau - new_tau)
                in_pi = sqrt(abs(lead_pi - new_pi))
                if in_pi > change:
                    change = in_pi
                if change > delta:
                    delta = change
                # Tell the performance on the far side what the lead and the near side make of it.
                pi, tau = new_pi - told_pi, new_tau - told_tau
                mean = tau / pi if pi else pi
                if onwards:
                    told_pi = 1.0 / (1.0 / pi_a + 1.0 / pi) if pi_a and pi else 0.0
                    told_tau = told_pi * (mean_a - mean)
                    left_pis[behind], left_taus[behind] = told_pi, told_tau
                    pis[behind], taus[behind] = pi_b + told_pi, tau_b + told_tau
                else:
                    told_pi = 1.0 / (1.0 / pi + 1.0 / pi_b) if pi and pi_b else 0.0
                    told_tau = told_pi * (mean + mean_b)
                    right_pis[place], right_taus[place] = told_pi, told_tau
                    pis[place], taus[place] = pi_a + told_pi, tau_a + told_tau
            if delta <= _CONVERGED:
                break
        self._tell_first(lead_pis[0] - told_pis[0], lead_taus[0] - told_taus[0])
        self._tell_last(lead_pis[last] - told_pis[last], lead_taus[last] - told_taus[last])

    def _tell_first(self, pi: float, tau: float) -> None:
        """Tell the first performance what its lead, without its own message, and the second make of it."""
        pi_b, tau_b = self._pi[1] - self._left_pi[1], self._tau[1] - self._left_tau[1]
        told_pi, told_tau = _combine(pi, tau, pi_b, tau_b, 1.0)
        self._pi[0] = (self._pi[0] - self._right_pi[0]) + told_pi
        self._tau[0] = (self._tau[0] - self._right_tau[0]) + told_tau

    def _tell_last(self, pi: float, tau: float) -> None:
        """Tell the last performance what its lead, without its own message, and the one before make of it."""
        pi_a, tau_a = self._pi[-2] - self._right_pi[-2], self._tau[-2] - self._right_tau[-2]
        told_pi, told_tau = _combine(pi_a, tau_a, pi, tau, -1.0)
        self._pi[-1] = (self._pi[-1] - self._left_pi[-1]) + told_pi
        self._tau[-1] = (self._tau[-1] - self._left_tau[-1]) + told_tau

    def posteriors(self) -> list[tuple[float, float]]:
        """Tell the skills what the performances have become, and return them."""
        after = []
        noise, sqrt = self._noise, math.sqrt
        for (skill_pi, skill_tau, told_pi, told_tau), (team_pi, team_tau), pi, tau in zip(
            self._skill, self._from_team, self._pi, self._tau, strict=True
        ):
            pi -= team_pi  # the message to the skill
            tau -= team_tau
            message_pi = 1.0 / (1.0 / pi) if pi else 0.0
            message_tau = message_pi * (tau / pi if pi else pi)
            # The performance with the message, less what the skill told it.
            pi, tau = (told_pi + message_pi) - told_pi, (told_tau + message_tau) - told_tau
            share = 1.0 / (1.0 + noise * pi)
            pi, tau = skill_pi + share * pi, skill_tau + share * tau
            mu, sigma = tau / pi, sqrt(1 / pi)
            # Once to and fro, as the package's rating objects do.
            pi = sigma**-2
            after.append(((pi * mu) / pi, sqrt(1 / pi)))
        return after


def _combine(pi_a: float, tau_a: float, pi_b: float, tau_b: float, sign: float) -> tuple[float, float]:
    """Return the distribution of ``a + sign * b``."""
    mean = (pi_a and tau_a / pi_a) + sign * (pi_b and tau_b / pi_b)
    if not (pi_a and pi_b):
        return 0.0, 0.0 * mean
    pi = 1.0 / (1.0 / pi_a + 1.0 / pi_b)
    return pi, pi * mean


def _draw(difference: float, margin: float) -> tuple[float, float]:
    distance = abs(difference)
    high, low = margin - distance, -margin - distance
    between = cdf(high) - cdf(low)
    if not between:
        raise FloatingPointError("nothing is left between the margins")
    v = (pdf(low) - pdf(high)) / between
    w = v**2 + (high * pdf(high) - low * pdf(low)) / between
    return (-v if difference < 0 else v), w
