"""A way of your own to draw opponents: those that are a little better are met more often.

[model_pool]
sample_mode = "examples/extensions/opponent_sampling.py:a_little_better"
"""

import math

from unstable_stream.model_pool import ModelPool


def a_little_better(pool: ModelPool, me: str, opponent: str, env_id: str | None) -> float:
    """Return the weight of an opponent: highest where its rating is half a standard deviation above mine."""
    mine, its = pool.rating(me, env_id), pool.rating(opponent, env_id)
    distance = (its.mu - mine.mu) / (mine.sigma or 1.0) - 0.5  # some rating systems have no sigma
    return math.exp(-distance * distance)
