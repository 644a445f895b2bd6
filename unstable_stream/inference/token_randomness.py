"""Give text generation its random numbers, one per request seed and token position, and check settings."""

import math

import numpy as np
import numpy.typing as npt

from unstable_stream.errors import EngineError
from unstable_stream.inference.engine import SamplingSettings
from unstable_stream.seeds import SPLIT_MIX_GAMMA, split_mix_array

__all__ = ["check_sampling", "uniforms"]


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) per row, a function of that row's seed and position alone.

    Counter based, so that a row's samples depend neither on its neighbours in the batch nor on the order of
    steps: output ``position`` of a SplitMix64 generator whose state is the mixed seed, so that neighbouring
    seeds give unrelated streams. Both arrays have shape (rows,), and so has the result.
    """
    outputs = split_mix_array(split_mix_array(seeds) + positions * np.uint64(SPLIT_MIX_GAMMA))
    # The upper 53 bits: every float64 multiple of 2^-53 in [0, 1) is equally likely.
    return (outputs >> np.uint64(11)).astype(np.float64) * 2.0**-53


def check_sampling(sampling: SamplingSettings) -> None:
    """Raise :class:`~unstable_stream.errors.EngineError` for settings that describe no distribution."""
    if sampling.max_tokens < 1:
        raise EngineError(f"max_tokens is {sampling.max_tokens}; a completion needs at least 1 token")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise EngineError(f"temperature is {sampling.temperature}; expected 0 (greedy) or a positive number")
    if not 0 < sampling.top_p <= 1:
        raise EngineError(f"top_p is {sampling.top_p}; expected a number above 0 and at most 1")
