"""Charts of who beats whom: the ladder, how it came about, and the payoff matrix."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

from unstable_stream.events.games import ON_ENGINE
from unstable_stream.history.views.best import ALPHA_RANK, bounds, probability_ahead, sure, who_is_best
from unstable_stream.history.views.report.charts import Chart, Matrix, Series, line_name, lines, time_unit
from unstable_stream.history.views.report.reading import Row, RunFacts
from unstable_stream.history.views.written import share
from unstable_stream.model_pool.dominance import Meeting, alpha_rank
from unstable_stream.model_pool.standings import by_strength

MOST_MODELS: Final = 30
"""Models in a ladder or matrix; the chart says how many it leaves out, and by what they were chosen."""
_MOST_RANKED: Final = 300
"""Of more players alpha-rank is not computed: a page is not to wait for it."""
_LINES_OVER_TIME: Final = 8
_BY_ELO: Final = (
    "Bradley-Terry strength of each player in Elo points, whose mean is 0, best at the top; a bar spans the "
    "95 % interval."
)
_BY_RATING: Final = (
    "TrueSkill rating of each player, best at the top; a bar spans three standard deviations, and the ladder "
    "is sorted by its left end, the skill a player almost surely has."
)


class _LadderRow(NamedTuple):
    """One row of a ladder."""

    player: str
    rating: float
    low: float
    high: float
    games: int
    ahead: float | None
    """The probability that it is stronger than the next; ``None``: not known."""


def who_beats_whom(runs: Sequence[RunFacts]) -> list[Chart]:
    """Return the ladder of each run, the ratings of all over time, and the payoff matrix of each run."""
    return [*_ladders(runs), _ladder_over_time(runs), *_payoffs(runs)]


def _chosen(facts: RunFacts, names: Sequence[str], most: int) -> list[str]:
    """Return the best of these models, the newest checkpoint and the fixed opponents, in the given order.

    Args:
        facts: of the run.
        names: models, the best first.
        most: the most to return; more fixed opponents than half of it are not preferred.
    """
    newest = [row["model_uid"] for row in facts.models if row["kind"] == "checkpoint"][-1:]
    fixed = list(_opponents(facts))
    kept = {*newest, *(fixed if len(fixed) < most // 2 else ())} & {*names}
    best = [name for name in names if name not in kept][: most - len(kept)]
    return [name for name in names if name in kept or name in best]


def _opponents(facts: RunFacts) -> dict[str, str]:
    """Return the kind of each player that is no checkpoint, of this run or another."""
    return {row["model_uid"]: row["kind"] for row in facts.models if row["kind"] not in ON_ENGINE}


def _left_out(shown: int, all_of_them: int) -> str:
    """Return what a chart says of the models that it does not show."""
    return (
        f" {shown} of {all_of_them} players are shown: the best, the newest checkpoint, and as many fixed "
        "opponents as there is room for."
        if shown < all_of_them
        else ""
    )


def _of_run(runs: Sequence[RunFacts], facts: RunFacts) -> str:
    return f": {facts.label}" if len(runs) > 1 else ""


def _ladder(facts: RunFacts) -> dict[str, Row]:
    """Return the ratings that are shown, by model, the best first."""
    return {row["model_uid"]: row for row in facts.ladder if row["env_id"] == facts.rated_env}


def _meetings(facts: RunFacts) -> dict[tuple[str, str], Meeting]:
    return {
        (row["model_uid"], row["opponent"]): Meeting(row["independent_score"], row["independent_games"])
        for row in facts.payoff
    }


def _all_met(facts: RunFacts) -> bool:
    """Return whether it is a tournament, whose order is that of all results together."""
    return bool(facts.payoff and (facts.config.get("evaluation") or {}).get("round_robin"))


def _by_rating(facts: RunFacts) -> list[_LadderRow]:
    found = []
    rows = list(_ladder(facts).values())
    for row, after in zip_longest(rows, rows[1:]):
        player, mu, sigma, games = (row[name] for name in ("model_uid", "mu", "sigma", "games"))
        ahead = None if after is None else probability_ahead([mu, after["mu"]], [sigma, after["sigma"]])
        found.append(_LadderRow(player, mu, mu - 3 * sigma, mu + 3 * sigma, games, ahead))
    return found


def _by_elo(facts: RunFacts, meetings: Mapping[tuple[str, str], Meeting]) -> list[_LadderRow]:
    """Return the ladder of a tournament: the numbers of ``model_pool.standings``, from the archive's rows."""
    games: dict[str, int] = {}
    for row in facts.payoff:
        games[row["model_uid"]] = games.get(row["model_uid"], 0) + row["games"]
    return [
        _LadderRow(player, strength.elo, strength.low, strength.high, games[player], ahead)
        for player, strength, ahead in by_strength(meetings)
    ]


def _ladders(runs: Sequence[RunFacts]) -> list[Chart]:
    charts = []
    for run, facts in enumerate(runs):
        meetings, by_elo = _meetings(facts), _all_met(facts)
        ladder = _by_elo(facts, meetings) if by_elo else _by_rating(facts)
        chosen = {*_chosen(facts, [row.player for row in ladder], MOST_MODELS)}
        # A vertical axis counts upwards.
        rows = [row for row in reversed(ladder) if row.player in chosen]
        met = {player for player, _ in meetings}
        shares = alpha_rank(meetings) if len(met) <= _MOST_RANKED else {}
        series = Series(
            line_name(runs, facts),
            [row.player for row in rows],
            [row.rating for row in rows],
            [row.low for row in rows],
            [row.high for row in rows],
            [row.games for row in rows],
            colour=run,
            run=run,
        )
        says = _BY_ELO if by_elo else _BY_RATING
        first = ladder[0].ahead if ladder else None
        charts.append(
            Chart(
                f"ladder-{run}",
                "Rating ladder" + _of_run(runs, facts),
                f"{says} {ALPHA_RANK}{_left_out(len(rows), len(ladder))}",
                x_title="Elo points" if by_elo else "TrueSkill points",
                y_title="95 % interval" if by_elo else "three standard deviations",
                series=[series],
                kind="ladder",
                wide=True,
                told=who_is_best([row.player for row in ladder], first, meetings),
                kinds=_opponents(facts),
                more={
                    "ahead of the next": [sure(row.ahead) for row in rows],
                    "alpha-rank": [share(shares.get(row.player)) for row in rows],
                },
            )
        )
    return charts


def _ladder_over_time(runs: Sequence[RunFacts]) -> Chart:
    unit, unit_s = time_unit(runs)
    most, band = (_LINES_OVER_TIME, ("low", "high")) if len(runs) == 1 else (_LINES_OVER_TIME // 2, None)

    def rows(facts: RunFacts) -> list[Row]:
        chosen = _chosen(facts, list(_ladder(facts)), most)
        return [row for row in facts.ladder_over_time if row["model_uid"] in chosen]

    return Chart(
        "ladder-over-time",
        "Ratings over time",
        "How the rating of some players settled as they played; the band is one standard deviation, and "
        "a new checkpoint starts from its parent's rating.",
        f"{unit} since the start",
        "TrueSkill points",
        lines(runs, rows, "second", {"mu": ""}, ("model_uid",), band=band, unit=unit_s),
    )


def _payoffs(runs: Sequence[RunFacts]) -> list[Chart]:
    charts = []
    for run, facts in enumerate(runs):
        pairs = {(row["model_uid"], row["opponent"]): row for row in facts.payoff}
        if not pairs:
            continue
        met = {name for pair in pairs for name in pair}
        rated = [name for name in _ladder(facts) if name in met]
        best = {*_chosen(facts, [*rated, *sorted(met.difference(rated))], MOST_MODELS)}
        best = {name for pair in pairs if best.issuperset(pair) for name in pair}
        kinds, meetings = _opponents(facts), _meetings(facts)
        models = [row["model_uid"] for row in facts.models if row["model_uid"] in best]
        names = sorted(models, key=lambda name: name not in kinds)
        cells = [[(row, column) for column in names] for row in names]
        matrix = Matrix(
            names,
            [[float(pairs[pair]["score"]) if pair in pairs else None for pair in row] for row in cells],
            [[pairs[pair]["games"] if pair in pairs else 0 for pair in row] for row in cells],
            [[bounds(meetings[pair]) if pair in pairs else None for pair in row] for row in cells],
        )
        charts.append(
            Chart(
                f"payoff-{run}",
                "Payoff matrix" + _of_run(runs, facts),
                "Score of the player of a row against the player of a column in percent, from 0 (lost all) "
                "to 100 (won all), a draw counting one half; bold beyond chance, empty where the two never "
                "met. Opponents come first." + _left_out(len(names), len(met)),
                x_title="against",
                y_title="player",
                matrix=matrix,
                kind="matrix",
                kinds=kinds,
                percent=True,
                wide=True,
            )
        )
    return charts
