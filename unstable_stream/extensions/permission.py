"""Decide whether code may be loaded: always if a person names it, else only if an operator allowed it.

A recorded configuration names code. If others can write to a log, a process that reads configurations from it
would run their code. So a process that serves recorded runs is confined. It loads only built-in code and code
that the operator's patterns allow (``--allow-code``, or the environment variable :data:`ALLOW_CODE`; child
processes inherit it).
"""

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from typing import Final

from unstable_stream.errors import ConfigError

ALLOW_CODE: Final = "UNSTABLE_STREAM_ALLOW_CODE"
"""Patterns (``fnmatch``) of targets, separated by commas; ``*`` allows all, an empty value allows none."""

_here: ContextVar[tuple[str, ...] | None] = ContextVar("unstable_stream_allowed_code", default=None)


def allowed_patterns() -> tuple[str, ...] | None:
    """Return the patterns that apply; ``None``: this process is not confined."""
    here = _here.get()
    if here is not None:
        return here
    listed = os.environ.get(ALLOW_CODE)
    return None if listed is None else _split(listed)


def confine(patterns: Iterable[str] = ()) -> None:
    """Confine this process and its child processes to ``patterns`` and those of :data:`ALLOW_CODE`."""
    os.environ[ALLOW_CODE] = ",".join(dict.fromkeys((*_split(os.environ.get(ALLOW_CODE, "")), *patterns)))


@contextmanager
def confined(patterns: Iterable[str] | None = ()) -> Iterator[None]:
    """Confine the code inside the block to ``patterns`` and :data:`ALLOW_CODE`; ``None``: do not confine it.

    The limit ends with the block, so a library call that confines itself does not confine its caller. A
    thread started inside is confined if it runs in a copy of the context (:func:`contextvars.copy_context`).
    A process started inside must be told: see :func:`confine`.
    """
    if patterns is None:
        yield
        return
    token = _here.set((*_split(os.environ.get(ALLOW_CODE, "")), *patterns))
    try:
        yield
    finally:
        _here.reset(token)


def pattern_of(target: str) -> str:
    """Return a pattern that matches only this target; a comma in it matches any character."""
    return glob.escape(target).replace(",", "?")


def is_allowed(target: str) -> bool:
    """Return true if this process may load ``target``."""
    patterns = allowed_patterns()
    return patterns is None or any(fnmatchcase(target, pattern) for pattern in patterns)


def check_allowed(target: str, what: str) -> None:
    """Raise a :class:`ConfigError` that names the flag if this process may not load ``target``."""
    if is_allowed(target):
        return
    raise ConfigError(
        f"{what} {target!r} is code that a recorded configuration names, and this process was not allowed "
        f"to load it: if you trust it, give --allow-code '{target}' or set {ALLOW_CODE}"
    )


def _split(listed: str) -> tuple[str, ...]:
    return tuple(pattern.strip() for pattern in listed.split(",") if pattern.strip())
