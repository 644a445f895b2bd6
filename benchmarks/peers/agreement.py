"""Whether two sides computed the same gradient."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of all parameters of the adapter as one vector."""

    cosine: float
    """1: the same direction."""
    difference: float
    """Length of the difference over the length of ours; 0: the same."""


def read_gradient(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the gradient that a side has written, by parameter."""
    with np.load(path) as arrays:
        return dict(arrays)


def agreement(
    ours: Mapping[str, NDArray[np.float32]], theirs: Mapping[str, NDArray[np.float32]]
) -> Agreement:
    """Compare a peer's gradient with ours.

    Raises:
        ValueError: they train other parameters.
    """
    if ours.keys() != theirs.keys():
        raise ValueError(f"trained by one side only: {sorted(ours.keys() ^ theirs.keys())[:4]}")
    own, other = (
        np.concatenate([gradient[name].ravel().astype(np.float64) for name in sorted(ours)])
        for gradient in (ours, theirs)
    )
    length = float(np.linalg.norm(own))
    cosine = float(own @ other) / (length * float(np.linalg.norm(other)))
    return Agreement(cosine, float(np.linalg.norm(own - other)) / length)
