"""Text of games and models, made safe to show on a terminal."""

from typing import Final

__all__ = ["plain"]

# Models write what they like, and a terminal obeys control characters: show them as what they are, unknown.
_CONTROL: Final = dict.fromkeys([c for c in (*range(32), *range(127, 160)) if chr(c) not in "\n\t"], "\ufffd")


def plain(text: str) -> str:
    """Return text that is safe to print on a terminal."""
    return text.translate(_CONTROL)
