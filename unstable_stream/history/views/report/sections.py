"""Build the sections of the report."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from unstable_stream.history.views.report.charts import (
    BY_UPDATE,
    Chart,
    Section,
    Series,
    environment_name,
    grouped,
    if_any,
    line,
    line_name,
    line_style,
    time_unit,
)
from unstable_stream.history.views.report.ratings import rating_charts
from unstable_stream.history.views.report.reading import Row, RunFacts


def build_sections(runs: Sequence[RunFacts]) -> list[Section]:
    """Return every section that has something to show; with several runs each chart shows all of them."""
    sections = [
        Section(
            "How well it plays",
            "Results of games against other players, as training went on.",
            [
                *_win_rates(runs),
                *_exploitability(runs),
                *_training_win_rates(runs),
                *_game_lengths(runs),
            ],
        ),
        Section(
            "How the training went",
            "What the learner measured at each update: one gradient step, or a few, on a batch of recorded "
            "moves.",
            _learning(runs),
        ),
        Section(
            "Mistakes",
            "Moves against the rules, and answers that did not fit.",
            _mistakes(runs),
        ),
        Section(
            "Who beats whom",
            "Every player that took part, rated by its games: trained checkpoints and fixed opponents.",
            rating_charts(runs),
        ),
        Section("How fast it went", "Work done per second of the run's clock.", _throughput(runs)),
    ]
    return [section for section in sections if section.charts]


# -- how well it plays ------------------------------------------------------------------------------


def _win_rates(runs: Sequence[RunFacts]) -> list[Chart]:
    series = [
        line(
            line_name(runs, facts, environment_name(runs, env_id), model, f"against {opponent}"),
            rows,
            "version",
            "win_rate",
            line_style(runs, run, place),
            band=("low", "high"),
        )
        for run, facts in enumerate(runs)
        for place, ((env_id, model, opponent), rows) in enumerate(
            grouped(facts.opponents, "env_id", "model", "opponent").items()
        )
    ]
    return if_any(
        Chart(
            "win-rate",
            "Win rate in evaluation games",
            "How often checkpoints won evaluation games, which are played with the same seeds each time and "
            "never trained on; the band is the 95 % Wilson interval, within which the true rate lies 19 "
            "times of 20.",
            y_title="games won",
            series=series,
            percent=True,
            wide=True,
        )
    )


def _of_split(
    runs: Sequence[RunFacts], split: str, y: str, band: tuple[str, str] | None, *names: str, first: int = 0
) -> list[Series]:
    return [
        line(
            line_name(runs, facts, environment_name(runs, env_id), model, *names),
            rows,
            "version",
            y,
            line_style(runs, run, first + place),
            band=band,
        )
        for run, facts in enumerate(runs)
        for place, ((env_id, model), rows) in enumerate(
            grouped((row for row in facts.curve if row["split"] == split), "env_id", "model").items()
        )
    ]


def _exploitability(runs: Sequence[RunFacts]) -> list[Chart]:
    """Return a chart for each game: the units of reward of two games cannot be compared."""
    charts = []
    for game, env_id in enumerate(sorted({row["env_id"] for facts in runs for row in facts.exploitability})):
        series = [
            line(line_name(runs, facts, what), rows, "version", column, line_style(runs, run, place))
            for run, facts in enumerate(runs)
            for rows in [[row for row in facts.exploitability if row["env_id"] == env_id]]
            for place, (column, what) in enumerate(
                (("nash_conv", "policy"), ("uniform_nash_conv", "uniform play"))
            )
            if rows and (column == "nash_conv" or run == 0)
        ]
        charts += if_any(
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


def _training_win_rates(runs: Sequence[RunFacts]) -> list[Chart]:
    return if_any(
        Chart(
            "training-win-rate",
            "Win rate in training games",
            "How often the policy won the games it learned from, whoever the opponent was; opponents that "
            "are themselves earlier checkpoints get better too, so this can stay level while the policy "
            "improves.",
            y_title="games won",
            series=_of_split(runs, "train", "win_rate", ("low", "high")),
            percent=True,
        )
    )


def _game_lengths(runs: Sequence[RunFacts]) -> list[Chart]:
    return if_any(
        Chart(
            "moves",
            "Length of games",
            "How many moves the policy made in a game, on average.",
            y_title="own moves per game",
            series=[
                *_of_split(runs, "train", "turns", None, "training"),
                *_of_split(runs, "eval", "turns", None, "evaluation", first=1),
            ],
        )
    )


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
    lines: Sequence[tuple[str, str]]
    band: tuple[str, str] | None = None


_BY_UPDATE: Final = (
    _ByUpdate(
        "reward",
        "Reward",
        "Mean reward of the moves trained on, as the environment gave it (raw) and after each stage of "
        "reward shaping (final, then step).",
        "reward",
        lambda facts: facts.steps,
        [("raw", "raw"), ("final", "final"), ("step", "step")],
    ),
    _ByUpdate(
        "loss",
        "Loss",
        "What the gradient step minimises; in policy-gradient training its value says little, only "
        "sudden jumps do.",
        "loss",
        lambda facts: facts.updates,
        [("loss", "")],
    ),
    _ByUpdate(
        "entropy",
        "Entropy",
        "How undecided the policy is about its next token: it falls as the policy gets certain, and a "
        "fall to zero means that it always says the same.",
        "nats per token",
        lambda facts: _metric(facts, "entropy"),
        [("entropy", "")],
    ),
    _ByUpdate(
        "staleness",
        "Staleness",
        "By how many updates the policy that played a move was behind the policy trained on it; 0 is fresh.",
        "updates",
        lambda facts: facts.steps,
        [("mean_staleness", "mean"), ("max_staleness", "oldest")],
    ),
    _ByUpdate(
        "ratio",
        "Importance ratio",
        "How much likelier the recorded tokens are now than when they were sampled; 1 means that the "
        "policy has not moved since.",
        "probability now / then",
        lambda facts: facts.ratios,
        [("mean_ratio", "mean"), ("max_ratio", "largest")],
    ),
    _ByUpdate(
        "divergence",
        "Divergence",
        "How far the policy trained on has moved from the one that played, an estimate of their "
        "Kullback-Leibler divergence.",
        "nats per token",
        lambda facts: facts.ratios,
        [("approx_kl", "")],
    ),
    _ByUpdate(
        "gradient",
        "Gradient norm",
        "Length of the gradient before it is clipped; peaks mark updates that would have torn the "
        "policy away.",
        "norm",
        lambda facts: _metric(facts, "grad_norm"),
        [("grad_norm", "")],
    ),
    _ByUpdate(
        "completion-length",
        "Length of completions",
        "Tokens the model wrote for a move it was trained on: the mean, and a band from the shortest to "
        "the longest.",
        "tokens",
        lambda facts: facts.steps,
        [("mean_completion_tokens", "")],
        band=("min_completion_tokens", "max_completion_tokens"),
    ),
)


def _learning(runs: Sequence[RunFacts]) -> list[Chart]:
    charts = []
    for chart in _BY_UPDATE:
        series = [
            line(
                line_name(runs, facts, model, name),
                of_model,
                "update",
                column,
                line_style(runs, run, first * len(chart.lines) + place),
                band=chart.band,
            )
            for run, facts in enumerate(runs)
            for first, ((model,), of_model) in enumerate(grouped(chart.rows(facts), "model").items())
            for place, (column, name) in enumerate(chart.lines)
        ]
        kept = [one for one in series if one.y]
        charts += if_any(Chart(chart.key, chart.title, chart.says, BY_UPDATE, chart.y_title, kept))
    return charts


# -- mistakes ---------------------------------------------------------------------------------------


def _mistakes(runs: Sequence[RunFacts]) -> list[Chart]:
    models = max((len(grouped(facts.steps, "model")) for facts in runs), default=0) or 1
    invalid = Chart(
        "invalid",
        "Games lost by an invalid move",
        "Share of games that the policy ended by a move the environment refused, with its 95 % Wilson "
        "interval.",
        y_title="games",
        series=[
            *_of_split(runs, "train", "invalid_rate", ("invalid_low", "invalid_high"), "training"),
            *_of_split(runs, "eval", "invalid_rate", ("invalid_low", "invalid_high"), "evaluation", first=1),
        ],
        percent=True,
    )
    truncated = Chart(
        "truncated",
        "Cut short",
        "Share of completions that hit the token limit, and of training games that hit the move limit.",
        y_title="share",
        x_title=BY_UPDATE,
        series=[
            *(
                line(
                    line_name(runs, facts, model, "completions"),
                    rows,
                    "update",
                    "truncated_rate",
                    line_style(runs, run, place),
                )
                for run, facts in enumerate(runs)
                for place, ((model,), rows) in enumerate(grouped(facts.steps, "model").items())
            ),
            *_of_split(runs, "train", "truncated_rate", None, "games", first=models),
        ],
        percent=True,
    )
    return [*if_any(invalid), *if_any(truncated)]


# -- how fast it went -------------------------------------------------------------------------------


def _throughput(runs: Sequence[RunFacts]) -> list[Chart]:
    clock, unit_s = time_unit(runs)
    charts = []
    for column, title, unit in (
        ("games", "Games", "games per second"),
        ("tokens", "Tokens written by the model", "tokens per second"),
        ("steps", "Moves trained on", "moves per second"),
    ):
        series = [
            line(
                line_name(runs, facts),
                [{"time": row["second"] / unit_s, "rate": row[column]} for row in facts.throughput],
                "time",
                "rate",
                line_style(runs, run, 0),
            )
            for run, facts in enumerate(runs)
        ]
        width = " or ".join(dict.fromkeys(f"{facts.bin_s:g}" for facts in runs))
        charts += if_any(
            Chart(
                f"throughput-{column}",
                title,
                f"{unit.capitalize()}, over stretches of {width} s; models load before the first.",
                f"{clock} since the start",
                unit,
                series,
                from_zero=True,
            )
        )
    return charts
