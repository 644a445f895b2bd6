"""How much the learner's benchmark can show at most, worked out from its batches."""

import pytest

from benchmarks.learner import at_most


@pytest.mark.parametrize(
    ("shape", "padding", "both"),
    # 512 turns of 22 tokens have no padding. SmolLM2's: 1,204 tokens with padding, 1,011 without, 327 of them
    # trained; 106.2 million weights in the layers, 28.3 in the head.
    [("quickstart", 1.0, 1.015), ("smollm2", 1204 / 1011, 1204 * 134.5 / (1011 * 106.2 + 327 * 28.3))],
)
def test_at_most_is_what_padding_and_the_output_head_take(shape: str, padding: float, both: float) -> None:
    assert at_most(shape) == pytest.approx((padding, both), rel=0.002)
