"""Chance in text generation: a uniform number per request seed and token position; checked settings."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from unstable_stream.errors import EngineError
from unstable_stream.inference.engine import SamplingSettings

__all__ = ["check_sampling", "uniforms"]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Return one number in [0, 1) per row, a function of that row's seed and position alone.

    Counter based, so that a row's samples depend neither on its neighbours in the batch nor on the order of
    steps: output ``position`` of a SplitMix64 generator (Steele, Lea and Flood, "Fast splittable pseudorandom
    number generators", OOPSLA 2014) whose state is the mixed seed, so that neighbouring seeds give unrelated
    streams. Both arrays have shape (rows,), and so has the result.
    """
    state = _mix(seeds + _GAMMA) + (positions + np.uint64(1)) * _GAMMA
    # The upper 53 bits: every float64 multiple of 2^-53 in [0, 1) is equally likely.
    return (_mix(state) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def check_sampling(sampling: SamplingSettings) -> None:
    """Raise :class:`~unstable_stream.errors.EngineError` for settings that describe no distribution."""
    if sampling.max_tokens < 1:
        raise EngineError(f"max_tokens is {sampling.max_tokens}; a completion needs at least 1 token")
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        raise EngineError(f"temperature is {sampling.temperature}; expected 0 (greedy) or a positive number")
    if not 0 < sampling.top_p <= 1:
        raise EngineError(f"top_p is {sampling.top_p}; expected a number above 0 and at most 1")
