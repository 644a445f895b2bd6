"""Make foreign text and values storable: what players, environments, endpoints and extensions hand over.

Text that becomes part of an event, or of the environment's game, passes through here first, so that what was
played is what is recorded and the record plays the same game. :func:`~unstable_stream.events.encode_event`
does the same to any text that is left, such as the words of an exception.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

_DEEPEST: Final = 50
"""Values nested deeper are left out: readers of JSON give up somewhere beyond it."""
_LARGEST_BITS: Final = 64
"""Of an integer: beyond it, most readers of JSON give up or round."""


class _NoFormError(Exception):
    """The value has no stable form in JSON."""


def storable_text(text: str) -> str:
    """Return ``text`` as valid Unicode: U+FFFD stands for half of a UTF-16 pair; both halves are joined.

    All other text is returned as it is, control characters and NUL included: the log and the archive keep
    them, and what shows them on a terminal replaces them there.
    """
    text = str.__str__(text)  # a subclass, such as a member of an enumeration, is what it says
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def storable_values(values: object, *, deepest: int = _DEEPEST) -> dict[str, Any]:
    """Return the part of a mapping that JSON can hold, ``deepest`` levels of it; empty if it is no mapping.

    Left out is a key whose value has something without a stable form in it: an object, bytes, a set, an
    array, a key that is no text, itself. Text is as :func:`storable_text` returns it, a number that is
    not finite is ``None``.
    """
    kept: dict[str, Any] = {}
    for key, value in values.items() if isinstance(values, Mapping) else ():
        try:
            kept[storable_text(str(key))] = _storable(value, (), deepest)
        except _NoFormError:
            continue
    return kept


def _storable(value: object, inside: tuple[int, ...], deepest: int) -> Any:
    """``inside``: the identities of the containers around the value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int) and value.bit_length() <= _LARGEST_BITS:
        return int(value)
    if len(inside) < deepest and id(value) not in inside:
        within = (*inside, id(value))
        if isinstance(value, (list, tuple)):
            return [_storable(item, within, deepest) for item in value]
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {storable_text(key): _storable(item, within, deepest) for key, item in value.items()}
    raise _NoFormError
