"""Give private random generators to code that uses the process-wide ones.

TextArena's environments draw from the module-level functions of :mod:`random`, and a few from
:mod:`numpy.random`. Two games that take turns would consume each other's numbers. Each game therefore owns
generators whose methods stand in for those functions during every call into its environment.

Exchanging functions takes 2 µs; exchanging the state of one generator (``getstate``, ``setstate``) takes
26 µs, a good part of a move. It works because TextArena always writes ``random.choice``; a test makes sure
that none of its modules binds such a function by ``from random import``.
"""

import io
import random
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, TypeAlias

import numpy as np

__all__ = ["PrivateRandomness"]

_Functions: TypeAlias = Mapping[str, Callable[..., Any]]


def _functions_of(namespace: Mapping[str, Any], generator: object) -> tuple[str, ...]:
    return tuple(name for name, value in namespace.items() if getattr(value, "__self__", None) is generator)


_PYTHON: Final[dict[str, Any]] = vars(random)
_PYTHON_NAMES: Final = _functions_of(_PYTHON, random.random.__self__)  # type: ignore[attr-defined]
_NUMPY: Final[dict[str, Any]] = vars(np.random)
_NUMPY_NAMES: Final = tuple(
    name
    for name in _functions_of(_NUMPY, np.random.random_sample.__self__)  # type: ignore[attr-defined]
    if hasattr(np.random.RandomState, name)
)

# The modules belong to the process, so threads must take turns too. Held for one environment call.
_TURN: Final = threading.Lock()


class _Discard(io.TextIOBase):
    """The stream for the environments' debugging lines: standard output is for data."""

    def write(self, text: str) -> int:
        return len(text)


_DISCARD: Final = _Discard()


class PrivateRandomness:
    """A context in which the global generators are this object's own; re-entering it resumes them.

    Everything outside finds the global generators as it left them, also after an exception. What is printed
    to standard output inside is discarded. Not reentrant: environments do not call back into games.
    """

    __slots__ = ("_numpy", "_outer_numpy", "_outer_python", "_outer_stdout", "_python")

    def __init__(self, seed: int, *, with_numpy: bool):
        """Seed the generators with ``seed``; ``with_numpy`` for environments that use numpy."""
        python = random.Random(seed)
        self._python: _Functions = {name: getattr(python, name) for name in _PYTHON_NAMES}
        self._numpy: _Functions = {}
        if with_numpy:
            numpy = np.random.RandomState(seed & 0xFFFF_FFFF)
            self._numpy = {name: getattr(numpy, name) for name in _NUMPY_NAMES} | {
                # These are plain functions around the global generator.
                "seed": numpy.seed,
                "ranf": numpy.random_sample,
                "sample": numpy.random_sample,
            }

    def __enter__(self) -> None:
        _TURN.acquire()
        self._outer_python = {name: _PYTHON[name] for name in _PYTHON_NAMES}
        self._outer_numpy = {name: _NUMPY[name] for name in self._numpy}
        self._outer_stdout = sys.stdout
        _PYTHON.update(self._python)
        _NUMPY.update(self._numpy)
        sys.stdout = _DISCARD

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout = self._outer_stdout
        _NUMPY.update(self._outer_numpy)
        _PYTHON.update(self._outer_python)
        _TURN.release()
