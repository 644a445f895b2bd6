"""Say what is wrong with a run, in words: one alarm for each kind of trouble, with what to do about it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from unstable_stream.api.doctor import Examined
from unstable_stream.history.views.report.reading import Row, RunFacts
from unstable_stream.history.views.run_list import RunStanding

_FAR_BEHIND: Final = 1000
"""Records, as in the rule of infra/prometheus/alerts.yml."""
_HEALTH: Final = "#health"


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that is wrong. Its texts may come from models and from code of users."""

    says: str
    remedy: str
    """The remedy, in words."""
    command: str = ""
    """The command that does it, without the options of the place; empty: none."""
    look: str = _HEALTH
    """The place to look at: the rest of an address, below that of the place unless it begins with ``#``."""


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The records that a consumer group is behind, in all its partitions together."""

    group: str
    records: int
    topics: Sequence[str]
    """Those it is behind on."""


def archived_alarms(
    run: RunStanding, facts: RunFacts, services: Sequence[Row], raised: Sequence[Row]
) -> Iterator[Alarm]:
    """Yield what the archive knows to be wrong, the worst first.

    Args:
        run: the run.
        facts: its summary.
        services: their last reports.
        raised: the alerts of plug-ins that stand.
    """
    onward = f"train --resume {run.run_id}"
    if run.state == "failed":
        reason = facts.about["reason"] or "it gave no reason"
        yield Alarm(
            f"It failed: {reason}", "Put that right; then it goes on from its last checkpoint.", onward
        )
    elif run.state == "lost":
        said = f"It is lost: {run.silence}. Its launcher was killed, or its machine is gone."
        yield Alarm(said, "It goes on where it was.", onward)
    if facts.collapses:
        *before, last = facts.collapses
        more = f"{len(before) + 1} signs of a collapse, the last" if before else "A sign of a collapse"
        games = "games?" + urlencode({"run": run.run_id, "update": last["update"]})
        said = f"{more} at update {last['update']}: {last['text']}"
        command = f"fork {run.run_id} --at {last['fork_at']}"
        yield Alarm(said, "Read the games of that update; a fork goes on before it.", command, games)
    if count := facts.totals["dead_letters"]:
        letter = facts.dead_letters[-1]
        said = f"{_counted(count, 'record')} rejected; {letter['consumer']}: {letter['reason']}"
        rows = "sql?" + urlencode({"q": f"FROM dead_letters WHERE run_id IN ('{run.run_id}', '')"})
        yield Alarm(said, "They are kept whole; nothing was made of them.", "log tail dead-letters", rows)
    for gap in facts.missing[:1]:
        said = f"The archive lacks records {gap['first_offset']} to {gap['last_offset']} of "
        said += f"{gap['topic']}[{gap['partition']}]: they were deleted before they were archived."
        rows = "sql?" + urlencode({"q": "FROM missing_of_runs"})
        yield Alarm(said, "What was found does not count them.", f"audit {run.run_id}", rows)
    for alert in raised:
        said = f"{alert['alert']}: {alert['value']:g}, says {alert['source']}"
        yield Alarm(said, "It stands until the plug-in takes it back.")
    for service in services:
        if run.state == "running" and not service["up"]:
            yield Alarm(f"{service['service']} is down.", "The launcher starts it again; see why it died.")
        elif service["restarts"]:
            times = "once" if service["restarts"] == 1 else f"{service['restarts']} times"
            yield Alarm(f"{service['service']} was restarted {times}.", "See why it died.")


def lag_alarms(lags: Sequence[GroupLag]) -> Iterator[Alarm]:
    """Yield the consumers that are far behind."""
    for lag in lags:
        if lag.records > _FAR_BEHIND:
            said = f"{lag.group} is {lag.records:,} records behind on {', '.join(lag.topics)}."
            yield Alarm(said, "If the number grows it is too slow, or dead.", "topics lag --watch")


def disk_alarms(disk: Examined) -> Iterator[Alarm]:
    """Yield an alarm if the disk of the data directory is nearly full or cannot be written."""
    if disk.state != "ok":
        yield Alarm(f"{disk.found}: the run needs room to write.", f"{disk.remedy}.".capitalize(), "disk")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun} was" if count == 1 else f"{count:,} {noun}s were"
