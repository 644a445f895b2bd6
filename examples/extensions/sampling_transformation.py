"""A sampling-reward transformation of your own: no advantage is larger than a limit.

[rewards]
sampling = ["NormalizeRewards", "examples/extensions/sampling_transformation.py:clipped(limit=1.5)"]
"""

from unstable_stream.reward_transformations import Sample


def clipped(steps: list[Sample], env_id: str | None = None, limit: float = 2.0) -> list[Sample]:
    for step in steps:
        step.reward = max(-limit, min(limit, step.reward))
    return steps
