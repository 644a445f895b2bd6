"""Text of games, models and records made safe to print, and the log lines of this package.

Log lines go where the program around this package configured structlog to send them, else warnings to stderr
alone. structlog prints every line to stdout until somebody configures it; a library must not do that to the
output of a script, and must not configure structlog for a program that has its own use of it.
"""

import contextlib
import functools
import io
import logging
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

# Models and records say what they like, and a terminal obeys control characters: show them as what they are,
# unknown. So too the line and paragraph separators, and what turns the direction of the text around.
_UNSHOWN: Final = (*range(32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROL: Final = dict.fromkeys([code for code in _UNSHOWN if chr(code) not in "\n\t"], "\ufffd")
_LOGIN: Final = re.compile(r"(?:(?<=://)|[^\s/:'\"@]+:)[^\s/'\"@]*@")


def plain(text: str) -> str:
    """Return text that is safe to print on a terminal."""
    return text.translate(_CONTROL)


def without_logins(text: str) -> str:
    """Return text in which no address has a user and a password."""
    return _LOGIN.sub("…@", text)


def plain_console(*, stderr: bool = False, highlight: bool = True, width: int | None = None) -> "Console":
    """Return Rich's console, which shows whatever text it is given as :func:`plain` does.

    The arguments are those of :class:`rich.console.Console`.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                # Rich's own moves of the cursor are control segments.
                yield segment if segment.control else segment._replace(text=plain(segment.text))

    return PlainConsole(stderr=stderr, highlight=highlight, width=width)


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
