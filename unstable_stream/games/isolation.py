"""Give private random generators to code that uses the process-wide ones.

TextArena's environments draw from the module-level functions of :mod:`random`, and a few from
:mod:`numpy.random`. Two games that take turns would consume each other's numbers. Each game therefore owns
generators whose methods stand in for those functions during every call into its environment. Other threads,
such as a notebook's, find the process-wide ones and the process's standard output all the time.

Exchanging functions takes 2 µs; exchanging the state of one generator (``getstate``, ``setstate``) takes
26 µs, a good part of a move. It works because TextArena always writes ``random.choice``; a test makes sure
that none of its modules binds such a function by ``from random import``.
"""

import io
import random
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO, TypeAlias

import numpy as np

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

_SHARED_PYTHON: Final = {name: _PYTHON[name] for name in _PYTHON_NAMES}
_SHARED_NUMPY: Final = {name: _NUMPY[name] for name in (*_NUMPY_NAMES, "seed", "ranf", "sample")}

# The modules belong to the process, so threads must take turns too. Held for one environment call.
_TURN: Final = threading.Lock()


class _Discard(io.TextIOBase):
    """The stream for the environments' debugging lines: standard output is for data.

    What other threads print meanwhile goes where they mean it to go.
    """

    thread = 0
    """The one that is inside an environment."""
    outer: TextIO = sys.stdout

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self.thread else self.outer.write(text)

    def flush(self) -> None:
        if threading.get_ident() != self.thread:
            self.outer.flush()


_DISCARD: Final = _Discard()


def _guarded(private: Callable[..., Any], shared: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls ``private`` in the thread that is inside an environment and ``shared`` in others."""

    def draw(*arguments: Any, **options: Any) -> Any:
        inside = threading.get_ident() == _DISCARD.thread
        return private(*arguments, **options) if inside else shared(*arguments, **options)

    return draw


def inside() -> bool:
    """Tell whether this thread is in an environment: there an exception is raised safely by a signal."""
    return _DISCARD.thread == threading.get_ident()


class PrivateRandomness:
    """A context in which the global generators are this object's own; re-entering it resumes them.

    Everything outside finds the global generators as it left them, also after an exception. What is printed
    to standard output inside is discarded. Not reentrant: environments do not call back into games.
    """

    __slots__ = ("_numpy", "_outer_numpy", "_outer_python", "_outer_stdout", "_python")

    def __init__(self, seed: int, *, with_numpy: bool = True):
        """Seed the generators with ``seed``; ``with_numpy`` for environments that use numpy."""
        python = random.Random(seed)
        self._python: _Functions = {
            name: _guarded(getattr(python, name), _SHARED_PYTHON[name]) for name in _PYTHON_NAMES
        }
        self._numpy: _Functions = {}
        if with_numpy:
            numpy = np.random.RandomState(seed & 0xFFFF_FFFF)
            private = {name: getattr(numpy, name) for name in _NUMPY_NAMES} | {
                # These are plain functions around the global generator.
                "seed": numpy.seed,
                "ranf": numpy.random_sample,
                "sample": numpy.random_sample,
            }
            self._numpy = {name: _guarded(draw, _SHARED_NUMPY[name]) for name, draw in private.items()}

    def __enter__(self) -> None:
        _TURN.acquire()
        self._outer_python = {name: _PYTHON[name] for name in _PYTHON_NAMES}
        self._outer_numpy = {name: _NUMPY[name] for name in self._numpy}
        self._outer_stdout = _DISCARD.outer = sys.stdout
        _PYTHON.update(self._python)
        _NUMPY.update(self._numpy)
        sys.stdout = _DISCARD
        _DISCARD.thread = threading.get_ident()  # last: see `inside`

    def __exit__(self, *_: object) -> None:
        _DISCARD.thread = 0
        sys.stdout = self._outer_stdout
        _NUMPY.update(self._outer_numpy)
        _PYTHON.update(self._outer_python)
        _TURN.release()
