"""Tell which run a person means, wherever the runs are listed: a log, an archive."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from unstable_stream.errors import RunError

_LISTED: Final = 10


def pick_run(
    prefix: str, known: Iterable[str], where: str = "this log", names: Mapping[str, str | None] | None = None
) -> str:
    """Return the id in ``known`` that ``prefix`` is, or of which it is the only beginning.

    Args:
        prefix: a run id or the beginning of one; with ``names``, or a run's name.
        known: ids of all runs there are.
        where: where they are, for the message.
        names: id to name, where runs are found by name too.

    Raises:
        RunError: no such run, or several; lists what is there.
    """
    ids = sorted(set(known))
    called = names or {}
    found = (
        [prefix]
        if prefix in ids
        else [run_id for run_id in ids if run_id.startswith(prefix) or called.get(run_id) == prefix]
    )
    if not found:
        raise no_run(prefix, ids, where)
    if len(found) > 1:
        by = "beginning or the name" if names else "beginning"
        raise RunError(f"{prefix!r} is the {by} of several runs: {', '.join(found)}")
    return found[0]


def no_run(wanted: str, ids: Sequence[str], where: str) -> RunError:
    """Return the error that there is no such run among ``ids``, which are sorted."""
    listed = ", ".join(ids[-_LISTED:]) or "none"
    return RunError(f"no run {wanted!r} in {where}; known runs: {listed}")
