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
    """Of its latest evaluated checkpoint against ``opponent``, 0 to 1."""
    silence: str | None
    number: int | None
    trains: bool | None
    """Whether it was to make updates of its own: false for evaluations, tournaments and games of people."""
    note: str
    """The key ``note`` of its configuration."""
    cpu_s: float | None = None
    """CPU-seconds of all its processes; ``None``: they reported none, as in earlier versions."""
    gpu_s: float | None = None
    """GPU-seconds that they held GPUs for."""
    opponent: str | None = None
    """The opponent that tells most: whom that checkpoint beats most nearly half of the time."""
    env_id: str | None = None
    """The environment in which they met."""
    win_rate_low: float | None = None
    """Lower bound of the 95 % Wilson interval."""
    win_rate_high: float | None = None
    """Upper bound."""

    @property
    def won(self) -> str | None:
        """The win rate in percent with its interval, and on a second line the opponent."""
        if self.win_rate is None or self.win_rate_low is None or self.win_rate_high is None:
            return None
        share, low, high = (
            round(100 * each) for each in (self.win_rate, self.win_rate_low, self.win_rate_high)
        )
        return f"{share} ({low}-{high})\n{self.opponent}"


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
    return [_from_archive(run, numbers.get(run.run_id)) for run in runs] + [
        ListedRun(run.run_id, run.name, run.started_at, "dropped", None, None, None, None, None, None, "")
        for run in dropped_runs(place.archive)
    ]


def _from_archive(run: run_list.RunLine, number: int | None) -> ListedRun:
    known = (run.run_id, run.name, run.started_at, run.state, run.games, run.updates)
    told = (run.silence or None, number, run.trains, run.note or "", run.cpu_s, run.gpu_s)
    if run.telling is None:
        return ListedRun(*known, None, *told)
    met, latest = run.telling.met, run.telling.latest
    return ListedRun(*known, latest.share, *told, met.label, met.env_id, latest.low, latest.high)


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
