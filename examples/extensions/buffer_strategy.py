"""A buffer strategy of your own: train first on the steps whose reward is furthest from zero.

[buffer]
strategy = "examples/extensions/buffer_strategy.py:surprising_first"
"""

from unstable_stream.events import Step


def surprising_first(step: Step, update: int, seed: int) -> float:
    """Return the rank of a step: a batch takes the lowest, overflow drops the highest."""
    return -abs(step.reward)
