"""Text of games, models and records, made safe to show on a terminal."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["plain", "plain_console"]

# Models and records say what they like, and a terminal obeys control characters: show them as what they are,
# unknown. So too the line and paragraph separators, and what turns the direction of the text around.
_UNSHOWN: Final = (*range(32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_CONTROL: Final = dict.fromkeys([code for code in _UNSHOWN if chr(code) not in "\n\t"], "\ufffd")


def plain(text: str) -> str:
    """Return text that is safe to print on a terminal."""
    return text.translate(_CONTROL)


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
