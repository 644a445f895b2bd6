"""Log lines of this package: as the program around it configured structlog, else warnings on stderr alone.

structlog prints every line to stdout until somebody configures it. A library must not do that to the output
of a script, and must not configure structlog for a program that has its own use of it.
"""

import contextlib
import functools
import io
import logging
import sys
from typing import Any, Final, TextIO, cast

from unstable_stream.plain_text import plain

__all__ = ["get_logger", "stderr_of_the_moment"]


class _Stderr(io.TextIOBase):
    # A line that cannot be kept, on a full disk or with its reader gone, is lost: it must not end what it
    # tells of.
    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            sys.stderr.write(plain(text))  # ids and errors in a line are as records have them
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


stderr_of_the_moment: Final = cast(TextIO, _Stderr())
"""Whatever ``sys.stderr`` is when something is written, not when logging was configured."""


@functools.cache
def _quiet() -> Any:
    import structlog

    return structlog.wrap_logger(
        structlog.PrintLogger(stderr_of_the_moment),
        [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(),
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        cache_logger_on_first_use=False,
    )


class _Lines:
    """A logger that looks at each line whether structlog has been configured meanwhile."""

    def __init__(self, name: str, values: dict[str, object]) -> None:
        self._name = name
        self._values = values

    def bind(self, **values: object) -> "_Lines":
        return _Lines(self._name, {**self._values, **values})

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)  # copying and pickling look for such
        import structlog  # takes a tenth of a second, and most commands write no line

        logger = structlog.get_logger(self._name) if structlog.is_configured() else _quiet()
        return getattr(logger.bind(**self._values), method)


def get_logger(name: str) -> Any:  # structlog publishes no usable type for a bound logger
    """Return a structlog logger named as the module that uses it."""
    return _Lines(name, {})
