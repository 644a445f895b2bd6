"""Tell which run a person means, wherever the runs are listed: a log, an archive."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from unstable_stream.errors import RunError

LATEST: Final = "latest"
"""The name of the newest run that trains."""
_LISTED: Final = 10


class KnownRun(NamedTuple):
    """A run that may be meant."""

    run_id: str
    name: str | None
    trains: bool
    """Whether it was to make updates of its own: false for evaluations, tournaments and games of people."""
    number: int
    """Its place among the runs in the order in which they began, from 1."""


def pick_run(wanted: str, known: Sequence[KnownRun], where: str = "this log") -> str:
    """Return the id of the run that is meant.

    Args:
        wanted: a run id; ``latest``, the newest run that trains; the number of a run; the beginning of one
            id only, or the name of one run only.
        known: all runs there are, in the order in which they began.
        where: where they are, for the message.

    Raises:
        RunError: no such run, or several; lists what is there.
    """
    if any(run.run_id == wanted for run in known):
        return wanted
    if wanted == LATEST:
        found = [run.run_id for run in known if run.trains][-1:]
    else:
        found = [run.run_id for run in known if wanted == str(run.number)] or sorted(
            run.run_id for run in known if run.run_id.startswith(wanted) or run.name == wanted
        )
    if not found:
        raise no_run(wanted, sorted(run.run_id for run in known), where)
    if len(found) > 1:
        raise RunError(f"{wanted!r} is the beginning or the name of several runs: {', '.join(found)}")
    return found[0]


def no_run(wanted: str, ids: Sequence[str], where: str) -> RunError:
    """Return the error that there is no such run among ``ids``, which are sorted."""
    listed = ", ".join(ids[-_LISTED:]) or "none"
    meant = "run that trains" if wanted == LATEST else f"run {wanted!r}"
    return RunError(f"no {meant} in {where}; known runs: {listed}")
