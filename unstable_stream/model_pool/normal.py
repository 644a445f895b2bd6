"""Compute the standard normal distribution, precisely also far out in its tails."""

import math
from statistics import NormalDist
from typing import Final

__all__ = ["SQRT_2", "SQRT_2_PI", "cdf", "inverse_cdf", "pdf"]

SQRT_2: Final = math.sqrt(2.0)
SQRT_2_PI: Final = math.sqrt(2.0 * math.pi)

inverse_cdf = NormalDist().inv_cdf


def pdf(x: float) -> float:
    """Return the density at ``x``."""
    return math.exp(-0.5 * x * x) / SQRT_2_PI


def cdf(x: float) -> float:
    """Return the mass below ``x``."""
    return 0.5 * math.erfc(-x / SQRT_2)  # erfc keeps its relative precision far out in the lower tail
