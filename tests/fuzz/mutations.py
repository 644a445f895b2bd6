"""Strategies that change a valid document or text in a few places."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

absurd: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2**31, 2**63 - 1, -(2**63), 10**30]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " ", "AAA=", "AAAA", "AAAAAA==", "*", "a/b", "../..", "\x00", "\ud7ff", "💥" * 50]),
    st.text(max_size=20),
    st.sampled_from([[], {}, [[]], {"": None}, [None], {"0": 0.0}, {"-1": 1e308}]),
)
"""Values that JSON can hold and that hardly any field expects."""

_Path = tuple[Any, ...]


def paths(document: Any, here: _Path = ()) -> Iterator[_Path]:
    """Yield the place of every value in a document."""
    yield here
    if isinstance(document, dict):
        for key, value in document.items():
            yield from paths(value, (*here, key))
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from paths(value, (*here, index))


def holder(document: Any, path: _Path) -> Any:
    """Return what holds the value at a place."""
    for key in path[:-1]:
        document = document[key]
    return document


@st.composite
def changed_document(draw: st.DrawFn, document: Any) -> Any:
    """Return a copy of ``document`` with one to three values replaced, removed or repeated."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in paths(changed) if path] or [()]))
        if not path:
            return copy.deepcopy(draw(absurd))
        parent = holder(changed, path)
        how = draw(st.sampled_from(["replace", "replace", "remove", "repeat"]))
        if how == "replace":
            parent[path[-1]] = copy.deepcopy(draw(absurd))
        elif how == "remove":
            del parent[path[-1]]
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        else:
            parent[draw(st.text(max_size=5))] = copy.deepcopy(parent[path[-1]])
    return changed


@st.composite
def changed_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Return ``data`` with a few bytes replaced, cut out or put in."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(changed)))
        end = min(len(changed), start + draw(st.sampled_from([0, 1, 1, 2, 20])))
        changed[start:end] = draw(st.binary(max_size=4))
    return bytes(changed)


def refusal(error: type[Exception], work: Callable[[], object]) -> str | None:
    """Do ``work``; return what it was refused with, or ``None`` if it was not. Other errors are raised."""
    try:
        work()
    except error as refused:
        return str(refused) or "no reason given"
    return None
