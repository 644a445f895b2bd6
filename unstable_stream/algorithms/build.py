"""Algorithms from configuration: a built-in's name, or a reference to a subclass of ``BaseAlgo``."""

from unstable_stream.algorithms.base import BaseAlgo
from unstable_stream.extensions import KINDS, Reference, Spec, build
from unstable_stream.extensions.build import refuse

__all__ = ["build_algorithm"]


def build_algorithm(spec: Spec, where: str = "algorithm") -> BaseAlgo:
    """Return a fresh algorithm.

    Raises:
        ConfigError: the algorithm cannot be loaded, does not take its arguments, or is no :class:`BaseAlgo`.
    """
    kind = KINDS["algorithm"]
    algorithm = build(kind, spec, where)
    if not isinstance(algorithm, BaseAlgo):
        raise refuse(kind, Reference.parse(spec, where), where, f"makes a {type(algorithm).__name__}")
    return algorithm
