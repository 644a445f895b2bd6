"""Build the sections of the report."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from unstable_stream.history.views.report.charts import (
    BY_UPDATE,
    Chart,
    Matrix,
    Section,
    Series,
    grouped,
    line_name,
    lines,
    time_unit,
)
from unstable_stream.history.views.report.over_seeds import seeds_charts
from unstable_stream.history.views.report.reading import Row, RunFacts

MOST_MODELS: Final = 30
"""Models in a ladder or matrix; the chart says how many it leaves out, and by what they were chosen."""
_LINES_OVER_TIME: Final = 8
_Band: TypeAlias = tuple[str, str] | None


def build_sections(runs: Sequence[RunFacts]) -> list[Section]:
    """Return every section that has something to show; with several runs each chart shows all of them."""
    sections = (
        ("Over seeds", "Each configuration of a sweep, as the mean of its seeds.", seeds_charts(runs)),
        (
            "How well it plays",
            "Results of games against other players, as training went on.",
            [*_results(runs), *_exploitability(runs), *_training_games(runs)],
        ),
        (
            "How the training went",
            "What the learner measured at each update: one gradient step, or a few, on a batch of recorded "
            "moves.",
            _learning(runs),
        ),
        ("Mistakes", "Moves against the rules, and answers that did not fit.", _mistakes(runs)),
        (
            "Who beats whom",
            "Every player that took part, rated by its games: trained checkpoints and fixed opponents.",
            [*_ladders(runs), _ladder_over_time(runs), *_payoffs(runs)],
        ),
        ("How fast it went", "Work done per second of the run's clock.", _throughput(runs)),
    )
    shown = [
        Section(title, says, [chart for chart in charts if _has_numbers(chart)])
        for title, says, charts in sections
    ]
    return [section for section in shown if section.charts]


def _has_numbers(chart: Chart) -> bool:
    return chart.matrix is not None or any(y is not None for series in chart.series for y in series.y)


# -- how well it plays ------------------------------------------------------------------------------


def _results(runs: Sequence[RunFacts]) -> list[Chart]:
    by = ("env_id", "model", "opponent")
    return [
        Chart(
            "win-rate",
            "Win rate in evaluation games",
            "How often checkpoints won evaluation games, which are played with the same seeds each time and "
            "never trained on; the band is the 95 % Wilson interval, within which the true rate lies 19 "
            "times of 20.",
            y_title="games won",
            series=lines(
                runs, lambda facts: facts.opponents, "version", {"win_rate": ""}, by, band=("low", "high")
            ),
            percent=True,
            wide=True,
        )
    ]


def _of_split(
    runs: Sequence[RunFacts], split: str, y: str, name: str, *, band: _Band = None, first: int = 0
) -> list[Series]:
    def rows(facts: RunFacts) -> list[Row]:
        return [row for row in facts.curve if row["split"] == split]

    return lines(runs, rows, "version", {y: name}, ("env_id", "model"), band=band, first=first)


def _exploitability(runs: Sequence[RunFacts]) -> list[Chart]:
    """Return a chart for each game: the units of reward of two games cannot be compared."""
    charts = []
    for game, env_id in enumerate(sorted({row["env_id"] for facts in runs for row in facts.exploitability})):
        found = lines(
            runs,
            lambda facts, env_id=env_id: [row for row in facts.exploitability if row["env_id"] == env_id],  # type: ignore[misc]
            "version",
            {"nash_conv": "policy", "uniform_nash_conv": "uniform play"},
        )
        series = [each for each in found if each.run == 0 or each.name.endswith("policy")]
        charts.append(
            Chart(
                f"exploitability-{game}",
                f"How far from optimal: {env_id}",
                "NashConv: what best responses in both seats would gain together over playing the policy "
                "itself. Optimal play has 0; uniform play draws among the legal moves.",
                y_title="NashConv, in units of reward",
                series=series,
                from_zero=True,
            )
        )
    return charts


def _training_games(runs: Sequence[RunFacts]) -> list[Chart]:
    return [
        Chart(
            "training-win-rate",
            "Win rate in training games",
            "How often the policy won the games it learned from, whoever the opponent was; opponents that "
            "are themselves earlier checkpoints get better too, so this can stay level while the policy "
            "improves.",
            y_title="games won",
            series=_of_split(runs, "train", "win_rate", "", band=("low", "high")),
            percent=True,
        ),
        Chart(
            "moves",
            "Length of games",
            "How many moves the policy made in a game, on average.",
            y_title="own moves per game",
            series=[
                *_of_split(runs, "train", "turns", "training"),
                *_of_split(runs, "eval", "turns", "evaluation", first=1),
            ],
        ),
    ]


# -- how the training went --------------------------------------------------------------------------


def _metric(facts: RunFacts, name: str) -> Sequence[Row]:
    """Return a learner's metric by update; a custom algorithm may not have it."""
    return [
        {"model": row["model"], "update": row["update"], name: (row["metrics"] or {}).get(name)}
        for row in facts.updates
    ]


class _ByUpdate(NamedTuple):
    """A chart of what the learner reports at each update, with lines of these columns and names."""

    key: str
    title: str
    says: str
    y_title: str
    rows: Callable[[RunFacts], Sequence[Row]]
    columns: Mapping[str, str]
    band: _Band = None


_BY_UPDATE: Final = (
    _ByUpdate(
        "reward",
        "Reward",
        "Mean reward of the moves trained on, as the environment gave it (raw) and after each stage of "
        "reward shaping (final, then step).",
        "reward",
        lambda facts: facts.steps,
        {"raw": "raw", "final": "final", "step": "step"},
    ),
    _ByUpdate(
        "loss",
        "Loss",
        "What the gradient step minimises; in policy-gradient training its value says little, only "
        "sudden jumps do.",
        "loss",
        lambda facts: facts.updates,
        {"loss": ""},
    ),
    _ByUpdate(
        "entropy",
        "Entropy",
        "How undecided the policy is about its next token: it falls as the policy gets certain, and a "
        "fall to zero means that it always says the same.",
        "nats per token",
        lambda facts: _metric(facts, "entropy"),
        {"entropy": ""},
    ),
    _ByUpdate(
        "staleness",
        "Staleness",
        "By how many updates the policy that played a move was behind the policy trained on it; 0 is fresh.",
        "updates",
        lambda facts: facts.steps,
        {"mean_staleness": "mean", "max_staleness": "oldest"},
    ),
    _ByUpdate(
        "ratio",
        "Importance ratio",
        "How much likelier the recorded tokens are now than when they were sampled; 1 means that the "
        "policy has not moved since.",
        "probability now / then",
        lambda facts: facts.ratios,
        {"mean_ratio": "mean", "max_ratio": "largest"},
    ),
    _ByUpdate(
        "divergence",
        "Divergence",
        "How far the policy trained on has moved from the one that played, an estimate of their "
        "Kullback-Leibler divergence.",
        "nats per token",
        lambda facts: facts.ratios,
        {"approx_kl": ""},
    ),
    _ByUpdate(
        "gradient",
        "Gradient norm",
        "Length of the gradient before it is clipped; peaks mark updates that would have torn the "
        "policy away.",
        "norm",
        lambda facts: _metric(facts, "grad_norm"),
        {"grad_norm": ""},
    ),
    _ByUpdate(
        "completion-length",
        "Length of completions",
        "Tokens the model wrote for a move it was trained on: the mean, and a band from the shortest to "
        "the longest.",
        "tokens",
        lambda facts: facts.steps,
        {"mean_completion_tokens": ""},
        ("min_completion_tokens", "max_completion_tokens"),
    ),
)


def _learning(runs: Sequence[RunFacts]) -> list[Chart]:
    charts = []
    for key, title, says, y_title, rows, columns, band in _BY_UPDATE:
        series = lines(runs, rows, "update", columns, ("model",), band=band)
        charts.append(Chart(key, title, says, BY_UPDATE, y_title, [each for each in series if each.y]))
    return charts


# -- mistakes ---------------------------------------------------------------------------------------


def _mistakes(runs: Sequence[RunFacts]) -> list[Chart]:
    models = max((len(grouped(facts.steps, "model")) for facts in runs), default=0) or 1
    band, rate = ("invalid_low", "invalid_high"), "truncated_rate"
    return [
        Chart(
            "invalid",
            "Games lost by an invalid move",
            "Share of games that the policy ended by a move the environment refused, with its 95 % Wilson "
            "interval.",
            y_title="games",
            series=[
                *_of_split(runs, "train", "invalid_rate", "training", band=band),
                *_of_split(runs, "eval", "invalid_rate", "evaluation", band=band, first=1),
            ],
            percent=True,
        ),
        Chart(
            "truncated",
            "Cut short",
            "Share of completions that hit the token limit, and of training games that hit the move limit.",
            y_title="share",
            x_title=BY_UPDATE,
            series=[
                *lines(runs, lambda facts: facts.steps, "update", {rate: "completions"}, ("model",)),
                *_of_split(runs, "train", rate, "games", first=models),
            ],
            percent=True,
        ),
    ]


# -- who beats whom ---------------------------------------------------------------------------------


def _chosen(facts: RunFacts, names: Sequence[str], most: int) -> list[str]:
    """Return the best of these models, the newest checkpoint and the fixed opponents, in the given order.

    Args:
        facts: of the run.
        names: models, the best first.
        most: the most to return; more fixed opponents than half of it are not preferred.
    """
    newest = [row["model_uid"] for row in facts.models if row["kind"] == "checkpoint"][-1:]
    fixed = [row["model_uid"] for row in facts.models if row["kind"] != "checkpoint"]
    kept = {*newest, *(fixed if len(fixed) < most // 2 else ())} & {*names}
    best = [name for name in names if name not in kept][: most - len(kept)]
    return [name for name in names if name in kept or name in best]


def _left_out(shown: int, all_of_them: int) -> str:
    """Return what a chart says of the models that it does not show."""
    return (
        f" {shown} of {all_of_them} players are shown: the best, the newest checkpoint, and as many fixed "
        "opponents as there is room for."
        if shown < all_of_them
        else ""
    )


def _ladder(facts: RunFacts) -> dict[str, Row]:
    """Return the ratings that are shown, by model, the best first."""
    return {row["model_uid"]: row for row in facts.ladder if row["env_id"] == facts.rated_env}


def _of_run(runs: Sequence[RunFacts], facts: RunFacts) -> str:
    return f": {facts.label}" if len(runs) > 1 else ""


def _ladders(runs: Sequence[RunFacts]) -> list[Chart]:
    charts = []
    for run, facts in enumerate(runs):
        ladder = _ladder(facts)
        # A vertical axis counts upwards.
        rows = [ladder[name] for name in reversed(_chosen(facts, list(ladder), MOST_MODELS))]
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
        charts.append(
            Chart(
                f"ladder-{run}",
                "Rating ladder" + _of_run(runs, facts),
                "TrueSkill rating of each player, best at the top; a bar spans three standard deviations, "
                "and the ladder is sorted by its left end, the skill a player almost surely has."
                + _left_out(len(rows), len(ladder)),
                x_title="TrueSkill points",
                series=[series],
                kind="ladder",
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
        names = [row["model_uid"] for row in facts.models if row["model_uid"] in best]
        grid = [[pairs.get((row, column)) for column in names] for row in names]
        matrix = Matrix(
            names,
            [[float(cell["score"]) if cell else None for cell in row] for row in grid],
            [[cell["games"] if cell else 0 for cell in row] for row in grid],
        )
        charts.append(
            Chart(
                f"payoff-{run}",
                "Payoff matrix" + _of_run(runs, facts),
                "Score of the player of a row against the player of a column, from 0 (lost all) to 1 (won "
                "all), a draw counting one half; empty where the two never met."
                + _left_out(len(names), len(met)),
                x_title="against",
                y_title="player",
                matrix=matrix,
                kind="matrix",
                percent=True,
                wide=True,
            )
        )
    return charts


# -- how fast it went -------------------------------------------------------------------------------


def _throughput(runs: Sequence[RunFacts]) -> list[Chart]:
    clock, unit_s = time_unit(runs)
    width = " or ".join(dict.fromkeys(f"{facts.bin_s:g}" for facts in runs))
    charts = []
    for column, title, unit in (
        ("games", "Games", "games per second"),
        ("tokens", "Tokens written by the model", "tokens per second"),
        ("steps", "Moves trained on", "moves per second"),
    ):
        says = f"{unit.capitalize()}, over stretches of {width} s; models load before the first."
        series = lines(runs, lambda facts: facts.throughput, "second", {column: ""}, unit=unit_s)
        x_title = f"{clock} since the start"
        charts.append(Chart(f"throughput-{column}", title, says, x_title, unit, series, from_zero=True))
    return charts
