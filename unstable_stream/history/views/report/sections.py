"""Build the sections of the report."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from unstable_stream.history.views.report.charts import (
    BY_UPDATE,
    Chart,
    Section,
    Series,
    grouped,
    lines,
    time_unit,
)
from unstable_stream.history.views.report.groups import group_chart, group_runs
from unstable_stream.history.views.report.players import who_beats_whom
from unstable_stream.history.views.report.reading import Row, RunFacts

_Band: TypeAlias = tuple[str, str] | None


def build_sections(runs: Sequence[RunFacts], axis: str = "updates") -> list[Section]:
    """Return every section that has something to show; with several runs each chart shows all of them.

    The curves of groups are drawn along ``axis``, all others by update.
    """
    groups = group_runs(runs) if runs else []
    of_groups = [group_chart(groups, axis)] if len(groups) < len(runs) else []
    sections = (
        ("By configuration", "Runs that differ in the seed alone, as their mean.", of_groups),
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
            who_beats_whom(runs),
        ),
        ("How fast it went", "Work done per second of the run's clock.", _throughput(runs)),
        (
            "What it used",
            "As its processes report once a minute, and at their end; the summary has the sums.",
            _used(runs),
        ),
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
            "Share of completions that hit the token limit (all, where it is one token), and of training "
            "games that hit the move limit.",
            y_title="share",
            x_title=BY_UPDATE,
            series=[
                *lines(runs, lambda facts: facts.steps, "update", {rate: "completions"}, ("model",)),
                *_of_split(runs, "train", rate, "games", first=models),
            ],
            percent=True,
        ),
    ]


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


def _used(runs: Sequence[RunFacts]) -> list[Chart]:
    clock, unit_s = time_unit(runs)
    charts = []
    for column, title, says, unit in (
        ("cores", "Processors", "Cores that each process kept busy since its report before.", "CPU cores"),
        ("memory_mb", "Memory", "The most that was resident in each process so far.", "MB"),
        ("gpus", "GPUs", "Those that each process held, used or idle.", "GPUs"),
        (
            "gpu_memory_mb",
            "Memory of GPUs",
            "The most that PyTorch had allocated in each process so far.",
            "MB",
        ),
        ("checkpoints_mb", "Disk", "Files of all checkpoints so far, also of those pruned since.", "MB"),
    ):

        def rows(facts: RunFacts, column: str = column) -> list[Row]:
            return [row for row in facts.used if row[column] is not None]

        series = lines(runs, rows, "second", {column: ""}, ("process",), unit=unit_s)
        x_title = f"{clock} since the start"
        charts.append(Chart(f"used-{column}", title, says, x_title, unit, series, from_zero=True))
    return charts
