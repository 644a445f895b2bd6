"""A sweep: runs of one configuration with several seeds and, of some keys, several values.

Each run is one cell, and says so itself in its configuration (``sweep``). So all that is known of a sweep is
what its runs recorded.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, NamedTuple, Self

from unstable_stream.algorithms.intervals import rates_interval
from unstable_stream.runs.config import RunConfig
from unstable_stream.runs.history import RunStatus
from unstable_stream.runs.run_view import RunView

NOT_OF_A_SWEEP: Final = (
    "seed",
    "sweep",
    "log",
    "metrics_port",
    "directory",
    "model_fingerprint",
    "model_revisions",
)
"""Keys that may differ between the times that the command of a sweep is given."""
ON_COLLAPSE: Final = "on a sign of collapse"
"""The beginning of the reason for which such a sign stops a run."""


class Cell(NamedTuple):
    """The seed and the values by which one run of a sweep differs from the others."""

    seed: int
    varied: str
    """The varied keys with their values, as JSON."""

    @classmethod
    def of(cls, run: RunStatus, sweep: str) -> Self | None:
        """Return the cell of a recorded run; ``None``: it is of no sweep, or of another one."""
        own = run.settings.get("sweep")
        if run.began is None or not isinstance(own, Mapping) or own.get("name") != sweep:
            return None
        return cls(run.began.seed, json.dumps(own.get("varied")))

    @property
    def label(self) -> str:
        """The cell in words."""
        return ", ".join(filter(None, (f"seed {self.seed}", varied_label(self.varied))))

    @property
    def configuration(self) -> str:
        """The varied keys and values in words."""
        return varied_label(self.varied) or "the configuration"


def varied_label(varied: str) -> str:
    """Return the varied keys and their values in words, by the last part of each key if that is enough.

    What a foreign record has instead is returned as it is.
    """
    try:
        values = json.loads(varied)
    except ValueError:
        return varied
    if not isinstance(values, Mapping):
        return varied
    last = [key.rpartition(".")[2] for key in values]
    named = values if len({*last}) < len(last) else last
    texts = (value if isinstance(value, str) else json.dumps(value) for value in values.values())
    return ", ".join(f"{name}={text}" for name, text in zip(named, texts, strict=True))


def sweep_name(config: RunConfig, varied: Sequence[str]) -> str:
    """Return the name of the sweep that varies these keys of a configuration, e.g. ``demo-3fa1c2``.

    More seeds and more values of the same keys make the same sweep; any other setting makes another.
    """
    left_out = (*NOT_OF_A_SWEEP, *varied)
    kept = [
        [key, value]
        for key, value in _flat(config.model_dump(mode="json", exclude_defaults=True))
        if not any(f"{key}.".startswith(f"{name}.") for name in left_out)
    ]
    digest = hashlib.sha256(json.dumps([kept, sorted(varied)]).encode()).hexdigest()
    return f"{config.name}-{digest[:6]}"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in sorted(tree.items()):
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@dataclass(frozen=True)
class SeedsResult:
    """The results of one configuration of a sweep against one opponent, over the seeds that have ended."""

    configuration: str
    """The varied keys with their values; empty: only the seed is varied."""
    env_id: str
    opponent: str
    update: int
    """The newest update that was evaluated."""
    before: float
    """Mean share of evaluation games won by the first evaluated policy."""
    won: float
    """The same for the last one."""
    low: float
    """Lower bound of its 95 % interval, see :func:`rates_interval`; 0 for one seed."""
    high: float
    """Upper bound; 1 for one seed."""
    by_seed: Mapping[int, float]
    """Share won by the last policy of each seed."""


def is_over(outcome: str, reason: str) -> bool:
    """Return whether nothing is left of a run to do: it is completed, or a sign of collapse stopped it."""
    return outcome == "completed" or reason.startswith(ON_COLLAPSE)


class FirstAndLast(NamedTuple):
    """The results of the first and the last evaluated policy of a run against one opponent."""

    update: int
    """The update of the last one."""
    before: float
    """Share of games that the first one won."""
    after: float
    games: int
    """Of the last one; games that repeat others count once."""


def first_and_last(view: RunView) -> dict[tuple[str, str], FirstAndLast]:
    """Return the results of a run by environment and opponent."""
    curves = {(matchup.env_id, matchup.label): view.curve(matchup) for matchup in view.matchups()}
    return {
        met: FirstAndLast(update, curve[0][1].win_rate, last.win_rate, last.independent_games)
        for met, curve in curves.items()
        for update, last in curve[-1:]
    }


def final_rate(view: RunView) -> tuple[float, int] | None:
    """Return the mean over opponents and environments of the share that the last evaluated policy won, and
    the number of all these games, where those that repeat others count once.
    """
    results = first_and_last(view).values()
    return (fmean(each.after for each in results), sum(each.games for each in results)) if results else None


def over_seeds(runs: Mapping[Cell, Mapping[tuple[str, str], FirstAndLast]]) -> list[SeedsResult]:
    """Return means over seeds, by configuration and opponent in the order of the runs.

    Args:
        runs: those that have ended, each with its results by environment and opponent.
    """
    found: dict[tuple[str, tuple[str, str]], dict[int, FirstAndLast]] = {}
    for cell, results in runs.items():
        for met, result in results.items():
            found.setdefault((cell.varied, met), {})[cell.seed] = result
    return [
        SeedsResult(
            varied_label(varied),
            *met,
            max(each.update for each in of_seeds.values()),
            fmean(each.before for each in of_seeds.values()),
            *rates_interval(
                [each.after for each in of_seeds.values()], sum(each.games for each in of_seeds.values())
            ),
            {seed: each.after for seed, each in of_seeds.items()},
        )
        for (varied, met), of_seeds in found.items()
    ]


class Worse(NamedTuple):
    """A configuration that is clearly worse than the best one, by their 95 % intervals over seeds."""

    high: float
    """Upper bound of its win rate."""
    best: str
    """The best configuration."""
    best_low: float
    """Lower bound of the best one's win rate, which is above ``high``."""

    @property
    def words(self) -> str:
        """Both bounds, in words."""
        return f"it wins at most {self.high:.1%}, {self.best} at least {self.best_low:.1%} (95 % intervals)"

    @property
    def values(self) -> dict[str, float]:
        """The two bounds, as metrics."""
        return {"sweep/win-rate-high": self.high, "sweep/best-win-rate-low": self.best_low}


def clearly_worse(rates: Mapping[str, Sequence[tuple[float, int]]]) -> dict[str, Worse]:
    """Return the configurations whose interval over seeds lies below that of the best one.

    Args:
        rates: by configuration, the :func:`final_rate` of each seed; with fewer than two it is not judged.
    """
    judged = {
        name: rates_interval([rate for rate, _ in each], sum(games for _, games in each))
        for name, each in rates.items()
        if len(each) > 1
    }
    if not judged:
        return {}
    best = max(judged, key=lambda name: judged[name][0])
    low = judged[best][1]
    return {name: Worse(high, best, low) for name, (_, _, high) in judged.items() if high < low}
