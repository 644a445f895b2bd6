"""Values of a test of which ``make test`` takes some, and ``make test-long`` the others."""

from collections.abc import Iterable

import pytest


def chosen(
    names: str, now: Iterable[object], later: Iterable[object], *, indirect: bool | list[str] = False
) -> pytest.MarkDecorator:
    """Return the mark of a test with these values, tuples where there are several names.

    Args:
        names: of its parameters, as for ``parametrize``.
        now: for ``make test``.
        later: those that repeat the way of the others, for ``make test-long``.
        indirect: whether, or which, parameters are fixtures.
    """
    rest = [
        pytest.param(*each if isinstance(each, tuple) else (each,), marks=pytest.mark.long) for each in later
    ]
    return pytest.mark.parametrize(names, [*now, *rest], indirect=indirect)
