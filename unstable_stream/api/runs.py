"""The runs of a place as a list: what the archive, or the log, knows of each, filtered and sorted."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from unstable_stream.api.place import Place
from unstable_stream.archive import dropped_runs, known_runs, open_archive
from unstable_stream.history.views import run_list
from unstable_stream.runs import history


class ListedRun(NamedTuple):
    """A run of the list; ``None``: not known, by the log of games and win rates."""

    run: str
    name: str | None
    started: datetime | None
    """UTC, without a zone."""
    state: str
    """Also ``lost``: without an end, and silent for ten minutes; or ``dropped`` from the archive."""
    games: int | None
    updates: int | None
    win_rate: float | None
    """Of its latest checkpoint in the evaluation, 0 to 1."""
    silence: str | None
    number: int | None
    trains: bool | None
    """Whether it was to make updates of its own: false for evaluations, tournaments and games of people."""
    note: str
    """The key ``note`` of its configuration."""


def listed_runs(place: Place, *, from_log: bool = False) -> list[ListedRun]:
    """Return all runs, the newest first, those that were dropped from the archive last.

    Raises:
        ArchiveError: there is no archive.
        EventLogError: with ``from_log``, there is no log.
    """
    if from_log:
        dropped = place.dropped()
        statuses = place.ask_history(history.list_runs)
        begun = [run.run_id for run in reversed(statuses) if run.began is not None]
        numbers = {run_id: number for number, run_id in enumerate(begun, 1)}
        found = [_from_log(run, numbers.get(run.run_id)) for run in statuses]
        gone = [run for run in found if run.run in dropped]
        listed = [run for run in found if run.run not in dropped]
        return listed + [run._replace(state="dropped", number=None, trains=None) for run in gone]
    with open_archive(place.archive) as connection:
        numbers = {run.run_id: run.number for run in known_runs(connection)}
    runs = sorted(run_list.list_runs(place.archive), key=lambda run: run.started_at, reverse=True)
    return [
        ListedRun(
            *(run.run_id, run.name, run.started_at, run.state, run.games, run.updates, run.win_rate),
            *(run.silence or None, numbers.get(run.run_id), run.trains, run.note or ""),
        )
        for run in runs
    ] + [
        ListedRun(run.run_id, run.name, run.started_at, "dropped", None, None, None, None, None, None, "")
        for run in dropped_runs(place.archive)
    ]


def _from_log(run: history.RunStatus, number: int | None) -> ListedRun:
    started = datetime.fromtimestamp(run.started_at_ms / 1000, tz=UTC).replace(tzinfo=None)
    known = (run.run_id, run.name, started, run.state, None, run.updates, None, run.silence or None, number)
    return ListedRun(*known, run.trains, str(run.settings.get("note", "")))


def chosen_runs(
    runs: Sequence[ListedRun], words: Sequence[str] = (), sort: str = "started"
) -> list[ListedRun]:
    """Return the runs that have each of the words in id, name, state or note, sorted.

    Args:
        runs: the newest first.
        words: whatever their case.
        sort: ``started``: as they are; ``games``, ``updates``, ``win_rate``: the largest first, what is not
            known last.
    """
    found = [
        run
        for run in runs
        if all(word.lower() in f"{run.run} {run.name} {run.state} {run.note}".lower() for word in words)
    ]
    if sort == "started":
        return found
    return sorted(
        found, key=lambda run: -1 if getattr(run, sort) is None else getattr(run, sort), reverse=True
    )
