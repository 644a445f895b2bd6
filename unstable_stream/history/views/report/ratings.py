"""Draw the ratings: ladder, ladder over time, payoff matrix."""

from collections.abc import Collection, Sequence

from unstable_stream.history.views.report.charts import (
    Chart,
    Matrix,
    Series,
    grouped,
    if_any,
    line,
    line_name,
    line_style,
    time_unit,
)
from unstable_stream.history.views.report.reading import Row, RunFacts

MOST_MODELS = 30
"""Models in a ladder or matrix; the chart says how many it leaves out, and by what they were chosen."""
_LINES_OVER_TIME = 8


def rating_charts(runs: Sequence[RunFacts]) -> list[Chart]:
    """Return the charts that have something to show."""
    return [*_ladders(runs), *_ladders_over_time(runs), *_payoffs(runs)]


def _selected(facts: RunFacts, most: int) -> list[str]:
    """Return at most about ``most`` models: checkpoints by age, evenly spread, then the fixed opponents."""
    fixed = [row["model_uid"] for row in facts.models if row["kind"] != "checkpoint"]
    own = [row["model_uid"] for row in facts.models if row["kind"] == "checkpoint"]
    room = max(2, most - len(fixed))
    if len(own) > room:
        own = [own[round(place * (len(own) - 1) / (room - 1))] for place in range(room)]
    return [*own, *fixed]


def _best(facts: RunFacts, rows: Sequence[Row], most: int) -> list[Row]:
    """Return the rows of the best models, best first, with the newest checkpoint and fixed opponents."""
    newest = [row["model_uid"] for row in facts.models if row["kind"] == "checkpoint"][-1:]
    fixed = [row["model_uid"] for row in facts.models if row["kind"] != "checkpoint"]
    rated = {row["model_uid"] for row in rows}
    kept = {name for name in [*newest, *fixed] if name in rated}
    kept = kept if len(kept) <= most // 2 else set(newest) & rated
    best = [row["model_uid"] for row in rows if row["model_uid"] not in kept]
    kept.update(best[: most - len(kept)])
    return [row for row in rows if row["model_uid"] in kept]


def _left_out(shown: int, all_of_them: int, chosen_by: str) -> str:
    """Return what a chart says of the models that it does not show."""
    return f" {shown} of {all_of_them} players are shown: {chosen_by}." if shown < all_of_them else ""


def _ladders(runs: Sequence[RunFacts]) -> list[Chart]:
    charts = []
    for run, facts in enumerate(runs):
        ladder = [row for row in facts.ladder if row["env_id"] == facts.rated_env]
        rows = _best(facts, ladder, MOST_MODELS)
        left_out = _left_out(
            len(rows),
            len(ladder),
            "the best, the newest checkpoint, and as many fixed opponents as there is room for",
        )
        rows.reverse()  # a vertical axis counts upwards
        series = Series(
            line_name(runs, facts),
            [row["model_uid"] for row in rows],
            [row["mu"] for row in rows],
            [row["mu"] - 3 * row["sigma"] for row in rows],
            [row["mu"] + 3 * row["sigma"] for row in rows],
            [row["games"] for row in rows],
            colour=run,
            run=run,
        )
        charts += if_any(
            Chart(
                f"ladder-{run}",
                "Rating ladder" + (f": {facts.label}" if len(runs) > 1 else ""),
                "TrueSkill rating of each player, best at the top; a bar spans three standard deviations, "
                "and the ladder is sorted by its left end, the skill a player almost surely has." + left_out,
                x_title="TrueSkill points",
                series=[series],
                kind="ladder",
            )
        )
    return charts


def _ladders_over_time(runs: Sequence[RunFacts]) -> list[Chart]:
    unit, unit_s = time_unit(runs)
    series = []
    for run, facts in enumerate(runs):
        by_model = grouped(facts.ladder_over_time, "model_uid")
        for place, model in enumerate(_selected(facts, _LINES_OVER_TIME if len(runs) == 1 else 4)):
            rows = [
                {
                    "time": row["second"] / unit_s,
                    "mu": row["mu"],
                    "low": row["mu"] - row["sigma"],
                    "high": row["mu"] + row["sigma"],
                }
                for row in by_model.get((model,), [])
            ]
            if rows:
                band = ("low", "high") if len(runs) == 1 else None
                style = line_style(runs, run, place)
                series.append(line(line_name(runs, facts, model), rows, "time", "mu", style, band=band))
    return if_any(
        Chart(
            "ladder-over-time",
            "Ratings over time",
            "How the rating of some players settled as they played; the band is one standard deviation, and "
            "a new checkpoint starts from its parent's rating.",
            f"{unit} since the start",
            "TrueSkill points",
            series,
        )
    )


def _met_most(facts: RunFacts, pairs: Collection[tuple[str, str]], most: int) -> list[str]:
    """Return at most ``most`` models that met many of each other: checkpoints by age, then fixed opponents.

    Who has met the fewest of those that are left is taken out, again and again: Charikar (2000), "Greedy
    approximation algorithms for finding dense components in a graph". Of equals the older one goes.
    """
    order = {row["model_uid"]: place for place, row in enumerate(facts.models)}
    met: dict[str, set[str]] = {}
    for one, other in pairs:
        met.setdefault(one, set()).add(other)
        met.setdefault(other, set()).add(one)
    while len(met) > most:
        least = min(met, key=lambda name: (len(met[name]), order.get(name, len(order))))
        for other in met.pop(least):
            met[other].discard(least)
    return sorted(met, key=lambda name: (order.get(name, len(order)), name))


def _payoffs(runs: Sequence[RunFacts]) -> list[Chart]:
    charts = []
    for run, facts in enumerate(runs):
        pairs = {(row["model_uid"], row["opponent"]): row for row in facts.payoff}
        if not pairs:
            continue
        names = _met_most(facts, pairs, MOST_MODELS)
        all_of_them = len({name for pair in pairs for name in pair})
        grid = [[pairs.get((row, column)) for column in names] for row in names]
        matrix = Matrix(
            names,
            [[float(cell["score"]) if cell else None for cell in row] for row in grid],
            [[cell["games"] if cell else 0 for cell in row] for row in grid],
        )
        charts.append(
            Chart(
                f"payoff-{run}",
                "Payoff matrix" + (f": {facts.label}" if len(runs) > 1 else ""),
                "Score of the player of a row against the player of a column, from 0 (lost all) to 1 (won "
                "all), a draw counting one half; empty where the two never met."
                + _left_out(len(names), all_of_them, "those who met most of each other"),
                x_title="against",
                y_title="player",
                matrix=matrix,
                kind="matrix",
                percent=True,
                wide=True,
            )
        )
    return charts
