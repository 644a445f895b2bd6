"""Show a sweep: what each of its configurations won, as means over seeds with 95 % intervals."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from unstable_stream.algorithms.intervals import rates_interval
from unstable_stream.history.views.report.charts import Chart, Series, grouped
from unstable_stream.history.views.report.reading import Row, RunFacts, before_and_after
from unstable_stream.runs.sweeps import Cell, FirstAndLast, SeedsResult, is_over, over_seeds, varied_label

_BY_VERSION: Final = "learner updates so far"
_SAYS: Final = (
    "the mean of the seeds. The band is its 95 % interval by Student's t over the seeds, at least as wide as "
    "Wilson's of all games; where only one seed has come so far, there is none."
)


def seeds_results(runs: Sequence[RunFacts]) -> list[SeedsResult]:
    """Return the means over seeds of the runs of sweeps that have ended; none without such runs."""
    return [
        replace(result, configuration=name)
        for name, of_seeds in _configurations(runs)
        for result in over_seeds(
            {
                Cell(facts.about["seed"], facts.about["varied"]): {
                    (change.env_id, change.opponent): FirstAndLast(
                        change.after["version"],
                        change.before["win_rate"],
                        change.after["win_rate"],
                        change.after["independent_games"],
                    )
                    for change in before_and_after(facts)
                }
                for facts in of_seeds
                if is_over(facts.about["state"], facts.about["reason"] or "")
            }
        )
    ]


def _configurations(runs: Sequence[RunFacts]) -> list[tuple[str, list[RunFacts]]]:
    """Return each configuration in words, with its sweep's name if there are several, and its runs."""
    found: dict[tuple[str, str], list[RunFacts]] = {}
    for facts in runs:
        if facts.about["sweep"]:
            found.setdefault((facts.about["sweep"], facts.about["varied"]), []).append(facts)
    several = len({sweep for sweep, _ in found}) > 1
    return [
        (" · ".join(filter(None, (sweep if several else "", varied_label(varied)))), of_seeds)
        for (sweep, varied), of_seeds in found.items()
    ]


def seeds_charts(runs: Sequence[RunFacts]) -> list[Chart]:
    """Return the curves of each configuration; none where no configuration has two seeds."""
    configurations = _configurations(runs)
    if not any(len(each) > 1 for _, each in configurations):
        return []

    def chart(key: str, title: str, words: str, rows_of: Callable[[RunFacts], Sequence[Row]]) -> Chart:
        series = [
            each
            for colour, (name, of_seeds) in enumerate(configurations)
            for each in _lines(name, colour, [rows_of(each) for each in of_seeds])
        ]
        says = f"{words}: {_SAYS}"
        return Chart(key, title, says, _BY_VERSION, "games won", series, percent=True, wide=True)

    def training(facts: RunFacts) -> list[Row]:
        return [row | {"opponent": None} for row in facts.curve if row["split"] == "train"]

    return [
        chart("seeds-evaluation", "Win rate in evaluation games", "Share won", lambda facts: facts.opponents),
        chart("seeds-training", "Win rate in training games", "Share won, whoever the opponent", training),
    ]


def _lines(name: str, colour: int, runs: Sequence[Sequence[Row]]) -> list[Series]:
    """Return a configuration's lines, one for each opponent, from the rows of each of its runs."""
    rows = [row for of_run in runs for row in of_run]
    several = len({row["env_id"] for row in rows}) > 1
    found = []
    groups = grouped(rows, "env_id", "model", "opponent")
    for dash, ((env_id, model, opponent), own) in enumerate(groups.items()):
        parts = (name, env_id if several else "", model, opponent and f"against {opponent}")
        x, y, low, high, games = [], [], [], [], []
        for (version,), same in sorted(grouped(own, "version").items()):
            games.append(sum(row["games"] for row in same))
            independent = sum(row["independent_games"] for row in same)
            mean, *band = rates_interval([row["win_rate"] for row in same], independent)
            x.append(version)
            y.append(mean)
            low.append(band[0] if len(same) > 1 else None)
            high.append(band[1] if len(same) > 1 else None)
        words = " · ".join(filter(None, parts)) or "all seeds"
        found.append(Series(words, x, y, low, high, games, colour=colour, dash=dash))
    return found
