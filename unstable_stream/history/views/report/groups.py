"""Group runs by what differs in their configurations, average seeds, and hold the groups
against one of them, opponent by opponent.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Final, TypeAlias

from unstable_stream.algorithms.improvement import Better, better_by_games, better_by_runs
from unstable_stream.algorithms.intervals import rates_interval, t_quantile
from unstable_stream.errors import ConfigError, did_you_mean
from unstable_stream.history.views.report.charts import AXES, Chart, Series, finite, places_along, thin
from unstable_stream.history.views.report.reading import Row, RunFacts
from unstable_stream.history.views.written import flattened
from unstable_stream.runs.sweeps import NOT_OF_A_SWEEP, is_over, varied_label

METHOD: Final = (
    "won: evaluation games won by the last evaluated policy, the mean of the group's runs, each counted "
    "once. Its 95 % interval is of Student's t over the runs, at least as wide as Wilson's of all games; "
    "of one run Wilson's.",
    "better: how probably a run of the group wins more than one of the baseline: the probability of "
    "improvement, with its 95 % interval by the stratified bootstrap over runs of Agarwal et al. (2021), "
    "arXiv:2108.13264, at least as wide as Wilson's of as many pairs as share no run. Of two single runs "
    "it is of their games alone, by Beta posteriors, and says nothing of other seeds.",
)
"""The meaning of the numbers of the table."""
EVALUATED: Final = ("win_rate", "reward", "turns", "invalid_rate", "truncated_rate")
"""Metrics of evaluation games; others are of the learner's updates."""
_LABELS: Final = (*NOT_OF_A_SWEEP, "note")
"""Keys that make no other configuration."""
_MOST_KEYS: Final = 3
_LONGEST_VALUE: Final = 40
_Met: TypeAlias = tuple[str, str | None, str | None]
"""Environment, opponent and trained model."""


@dataclass(frozen=True)
class RunGroup:
    """Runs of one configuration."""

    name: str
    settings: Mapping[str, str]
    """The keys that the groups do not share, each with its value as JSON."""
    runs: Sequence[RunFacts]


@dataclass(frozen=True)
class GroupResult:
    """The results of a group's last evaluated policies against one opponent."""

    env_id: str
    opponent: str | None
    model: str | None
    """The trained model; ``None``: the runs train one."""
    update: int
    """The newest of these policies."""
    won: float
    """Mean share of evaluation games won."""
    low: float
    """Lower bound of its 95 % interval."""
    high: float
    by_run: Mapping[str, float]
    """Share won by each run, by its id."""
    better: Better | None
    """The probability to be better than the baseline; ``None``: it is the baseline, or has no such games."""


@dataclass(frozen=True)
class GroupRow:
    """One group of the table; numbers are means over its runs."""

    group: str
    settings: Mapping[str, str]
    runs: Sequence[str]
    """Their ids."""
    rating: float | None
    """Mean skill of the newest rated checkpoint, TrueSkill points among the players of its own run."""
    spent: Mapping[str, float | None]
    """Updates, training games, tokens that models sampled, seconds from start to end, and CPU-seconds."""
    results: Sequence[GroupResult]
    """By opponent; none: without evaluations."""


@dataclass(frozen=True)
class GroupTable:
    """All groups beside each other."""

    baseline: str
    """The name of the group that the others are held against."""
    groups: Sequence[GroupRow]
    sentences: Sequence[str]
    """The lines below the table: remarks, and how its numbers are made."""


def group_runs(runs: Sequence[RunFacts], by: Sequence[str] = ()) -> list[RunGroup]:
    """Return the groups, in the order of the runs.

    Runs of one group have equal configurations but for the seed, the note and where they ran; a fork is of
    another group than its parent. A group of a sweep is named by the values that the sweep varies, others by
    their runs' name if it is theirs alone, by the keys that differ if they are few, or of single runs by
    their labels.

    Args:
        runs: at least one.
        by: keys, or sections, that alone make groups.

    Raises:
        ConfigError: no run has such a key.
    """
    every = [flattened(dict(facts.config)) for facts in runs]
    for wanted in by:
        known = {key for own in every for key in own}
        if not any(_is_of(key, [wanted]) for key in known):
            hint = did_you_mean(wanted, known, "docs/reference/configuration.md lists the keys")
            raise ConfigError(f"by {wanted!r}: no run has this key; {hint}")
    if by:
        every = [{key: value for key, value in own.items() if _is_of(key, by)} for own in every]
    else:
        every = [_settings(facts, own) for facts, own in zip(runs, every, strict=True)]
    keys = sorted({key for own in every for key in own})
    differing = [key for key in keys if len({own.get(key) for own in every}) > 1]
    found: dict[tuple[str, ...], list[RunFacts]] = {}
    for facts, own in zip(runs, every, strict=True):
        found.setdefault(tuple(own.get(key, '"not set"') for key in differing), []).append(facts)
    settings = [dict(zip(differing, values, strict=True)) for values in found]
    names = _names(list(found.values()), settings, own=not by)
    return [RunGroup(*each) for each in zip(names, settings, found.values(), strict=True)]


def _settings(facts: RunFacts, flat: Mapping[str, str]) -> dict[str, str]:
    own = {key: value for key, value in flat.items() if not _is_of(key, _LABELS)}
    if parent := facts.about["parent_run_id"]:
        own["forked from"] = json.dumps(f"{parent}@{facts.about['parent_update']}")
    return own


def _is_of(key: str, sections: Sequence[str]) -> bool:
    return f"{key}.".startswith(tuple(f"{section}." for section in sections))


def _names(
    groups: Sequence[Sequence[RunFacts]], settings: Sequence[Mapping[str, str]], *, own: bool
) -> list[str]:
    """Return a name for each group, of the first kind that tells them apart; ``own``: also the runs' own."""
    every = [[facts.about for facts in runs] for runs in groups]
    one_sweep = len({about["sweep"] for runs in every for about in runs}) == 1
    varied = [varied_label(runs[0]["varied"] or "{}") if one_sweep else "" for runs in every]
    given = [runs[0]["name"] if len({about["name"] for about in runs}) == 1 else "" for runs in every]
    told = [_told(each) or "all runs" for each in settings]
    # A few of many keys do not say which run this is: its own label does.
    alone = all(len(runs) == 1 for runs in groups) and max(map(len, settings)) > _MOST_KEYS
    labels = [runs[0].label if alone else "" for runs in groups]
    for names in (varied, given, labels, told) if own else (told,):
        if all(names) and len({*names}) == len(names):
            return names
    return [f"{number}: {name}" for number, name in enumerate(told, 1)]


def _told(settings: Mapping[str, str]) -> str:
    """Return keys and values in words, as those of a sweep, without what would make them long."""
    values = {key: json.loads(value) for key, value in list(settings.items())[:_MOST_KEYS]}
    short = {
        key: value if len(text := str(value)) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
        for key, value in values.items()
    }
    more = len(settings) - len(values)
    return varied_label(json.dumps(short)) + (f", {more} more" if more else "")


def compare_groups(groups: Sequence[RunGroup], baseline: str | None = None) -> GroupTable:
    """Return the table.

    Args:
        groups: at least one.
        baseline: the group that the others are held against, by its name or by the id of one of its runs;
            ``None``: the first.

    Raises:
        ConfigError: there is no such group.
    """
    base = _baseline(groups, baseline)
    last = {group.name: _last_rows(group) for group in groups}
    rows = [
        GroupRow(
            group.name,
            group.settings,
            [facts.run_id for facts in group.runs],
            _mean(facts.rating for facts in group.runs),
            _spent(group.runs),
            [
                _result(met, found, None if group is base else last[base.name].get(met))
                for met, found in last[group.name].items()
            ],
        )
        for group in groups
    ]
    said = [line for group, row in zip(groups, rows, strict=True) for line in _remarks(group, row, base.name)]
    environments = sorted({result.env_id for row in rows for result in row.results})
    if len(environments) > 1:
        said.append(f"several environments, each compared on its own: {', '.join(environments)}")
    return GroupTable(base.name, rows, [*said, *METHOD])


def _baseline(groups: Sequence[RunGroup], name: str | None) -> RunGroup:
    for group in groups:
        if name in (None, group.name, *(facts.run_id for facts in group.runs)):
            return group
    names = ", ".join(repr(group.name) for group in groups)
    raise ConfigError(
        f"baseline {name!r}: expected a group or a run that is compared; the groups are {names}"
    )


def _spent(runs: Sequence[RunFacts]) -> dict[str, float | None]:
    return {
        "updates": _mean(facts.totals["updates"] for facts in runs),
        "games": _mean(facts.totals["train_games"] for facts in runs),
        "tokens": _mean(facts.totals["tokens"] for facts in runs),
        "seconds": _mean(facts.duration_s for facts in runs),
        "cpu_seconds": _mean(facts.cpu_s for facts in runs),
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _last_rows(group: RunGroup) -> dict[_Met, dict[str, Row]]:
    """Return by opponent the last evaluation of each run, by its id."""
    found: dict[_Met, dict[str, Row]] = {}
    for facts in group.runs:
        for row in facts.opponents:  # in the order of versions
            found.setdefault((row["env_id"], row["opponent"], row["model"]), {})[facts.run_id] = row
    return found


def _result(met: _Met, rows: Mapping[str, Row], base: Mapping[str, Row] | None) -> GroupResult:
    by_run = {run: float(row["win_rate"]) for run, row in rows.items()}
    first, *others = rows.values()
    won, low, high = (
        rates_interval(list(by_run.values()), sum(row["independent_games"] for row in rows.values()))
        if others
        else (first["win_rate"], first["low"], first["high"])
    )
    better = None
    if base and len(base) == len(rows) == 1:
        (other,) = base.values()
        better = better_by_games(*_won_of(first), *_won_of(other))
    elif base:
        better = better_by_runs(list(by_run.values()), [row["win_rate"] for row in base.values()])
    return GroupResult(*met, max(row["version"] for row in rows.values()), won, low, high, by_run, better)


def _won_of(row: Row) -> tuple[float, int]:
    return row["win_rate"] * row["independent_games"], row["independent_games"]


def _remarks(group: RunGroup, row: GroupRow, base: str) -> Iterator[str]:
    """Yield what the table does not say: runs that have not ended, and what cannot be compared well."""
    for facts in group.runs:
        state, silence = facts.life
        if not is_over(facts.about["state"], facts.about["reason"] or ""):
            yield f"{facts.run_id} is {state}{f' ({silence})' if silence else ''}: as far as it went"
        if not facts.opponents:
            yield f"{facts.run_id} has no evaluation"
    if row.group != base and row.results and not any(result.better for result in row.results):
        yield f"{row.group} met nobody in an evaluation whom {base} met there: nothing is compared"
    updates = {each["version"] for found in _last_rows(group).values() for each in found.values()}
    if len(updates) > 1:
        yield f"{row.group} was last evaluated at updates {min(updates)} to {max(updates)}"


def group_chart(groups: Sequence[RunGroup], axis: str = "updates", metric: str = "win_rate") -> Chart:
    """Return a metric's curve for each group and opponent: the mean of the runs, with its 95 % interval.

    A point is the mean of the runs that have this update, drawn at the mean of how far they were then.

    Args:
        groups: those that are drawn.
        axis: one of :data:`charts.AXES`.
        metric: one of :data:`EVALUATED`, or a metric of the learner's updates.

    Raises:
        ConfigError: there is no such axis or metric.
    """
    if axis not in AXES:
        raise ConfigError(f"x={axis!r}: expected one of {', '.join(AXES)}")
    points: dict[tuple[int, _Met], dict[int, list[tuple[float, Row]]]] = {}
    for place, group in enumerate(groups):
        for facts in group.runs:
            clock = places_along(axis, facts)
            for row in _metric_rows(facts, metric):
                update = row["version"]
                x = update if axis == "updates" else clock.get(update)
                if x is not None and finite(row[metric]) is not None:
                    met = (row["env_id"], row["opponent"], row["model"])
                    points.setdefault((place, met), {}).setdefault(update, []).append((x, row))
    if not points and metric not in EVALUATED:
        every = [row for group in groups for facts in group.runs for row in facts.updates]
        learned = sorted({name for row in every for name in row["metrics"] or ()})
        known = [*EVALUATED, "loss", *learned]
        hint = did_you_mean(metric, known, f"expected one of {', '.join(known)}")
        raise ConfigError(f"metric={metric!r}: no run has it; {hint}")
    every_met = list(dict.fromkeys(met for _, met in points))
    several = len({env_id for env_id, _, _ in every_met}) > 1
    series = []
    for (place, met), by_update in points.items():
        env_id, opponent, model = met
        parts = (groups[place].name, env_id if several else "", model, opponent and f"against {opponent}")
        name = " · ".join(filter(None, parts))
        alone = len(groups[place].runs) == 1
        rows = thin([_point(by_update[update], metric, alone) for update in sorted(by_update)])
        x, y, low, high, games = map(list, zip(*rows, strict=True))
        counts = games if metric in EVALUATED else None
        series.append(Series(name, x, y, low, high, counts, colour=place, dash=every_met.index(met)))
    says = (
        "The mean of the runs of each group. The band is its 95 % interval by Student's t over the runs, "
        "of games won at least as wide as Wilson's of all games; of a group of a single run it is "
        "Wilson's."
    )
    titles = {"win_rate": "Win rate in evaluation games"}
    return Chart(
        f"groups-{metric}",
        titles.get(metric, metric),
        says,
        AXES[axis].title,
        "games won" if metric == "win_rate" else metric,
        series,
        percent=metric in EVALUATED and metric.endswith("_rate"),
        wide=True,
    )


def _metric_rows(facts: RunFacts, metric: str) -> Sequence[Row]:
    if metric in EVALUATED:
        return facts.opponents
    return [
        {"env_id": "", "opponent": None, "model": row["model"], "version": row["update"]}
        | {metric: row["loss"] if metric == "loss" else (row["metrics"] or {}).get(metric)}
        for row in facts.updates
    ]


def _point(found: Sequence[tuple[float, Row]], metric: str, alone: bool) -> tuple[Any, ...]:
    """Return a point, the ends of its band and the games behind it. ``Any``: a number, or nothing."""
    rows = [row for _, row in found]
    values = [float(row[metric]) for row in rows]
    mean, low, high = fmean(values), None, None
    if metric == "win_rate" and alone:
        low, high = rows[0]["low"], rows[0]["high"]
    elif metric == "win_rate" and len(values) > 1:
        _, low, high = rates_interval(values, sum(row["independent_games"] for row in rows))
    elif len(values) > 1:
        half = t_quantile(len(values) - 1) * stdev(values) / len(values) ** 0.5
        low, high = mean - half, mean + half
    games = sum(row.get("games", 0) for row in rows)
    return fmean(x for x, _ in found), mean, low, high, games
