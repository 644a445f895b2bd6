"""Learners that were fed the same history, beside each other: a table, where each pair parts, and curves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import msgspec

from unstable_stream.algorithms.intervals import interval_of_sum
from unstable_stream.archive.what_if import LabelledSet
from unstable_stream.history.views.report.charts import BY_UPDATE, Chart, Section, Series, finite, thin

RECORDED: Final = "recorded"
"""Instead of a learner's name: the run itself, as its updates say."""
_NOT_COMPARED: Final = "buffer_size"
"""It does not follow from the batch."""
_NAMED: Final = 2
_SCHEMA: Final = {
    "variant": "VARCHAR",
    "update": "INTEGER",
    "steps": "INTEGER",
    "reward_gain": "DOUBLE",
    "effective_samples": "DOUBLE",
    "weights_sha256": "VARCHAR",
    "metrics": "MAP(VARCHAR, DOUBLE)",
}


class FedUpdate(msgspec.Struct, frozen=True):
    """One update of one learner."""

    variant: str
    update: int
    steps: int
    """Steps in the batch."""
    reward_gain: float | None
    """The mean reward that the learner's policy would have had at the batch's positions before it trained on
    them, minus what the players had: answers weighted by the ratio of both probabilities, with weights that
    add up to 1. ``None``: nothing was trained on.
    """
    effective_samples: float | None
    """The effective sample size of these weights (L. Kish, 1965), as a share of the batch: 1 if all are
    equal.
    """
    weights_sha256: str | None
    """Digest of the weights afterwards; of the record only where it has a checkpoint."""
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class LearnerRow:
    """The result of one learner; means are over its updates."""

    variant: str
    updates: int
    steps: int
    loss: float | None
    """Of the last update, as the two below."""
    entropy: float | None
    approx_kl: float | None
    effective_samples: float | None
    lowest_effective_samples: float | None
    reward_gain: float | None
    """Over the later half of its updates."""
    over_first: float | None
    """The same minus that of the first learner, batch by batch, with its 95 % interval by Student's t."""
    low: float | None
    high: float | None
    differs_at: Mapping[str, int | None]
    """For each learner above, the first update that differs; ``None``: none does."""


@dataclass(frozen=True)
class Pair:
    """Two learners."""

    one: str
    other: str
    update: int | None
    """The first update of which the weights or a metric differ; ``None``: none."""
    what: str
    """The metrics that differ there, and the weights if they do."""

    def __str__(self) -> str:
        if self.update is None:
            return f"{self.other} does not differ from {self.one}"
        return f"{self.other} differs from {self.one} first at update {self.update}: {self.what}"


@dataclass(frozen=True)
class Comparison:
    """The updates of all learners, the record first."""

    updates: Mapping[str, Sequence[FedUpdate]]
    ended: Mapping[str, str]
    """By learner that could not go on, the reason."""

    def told(self) -> list[str]:
        """Return as lines who could not go on, and where each learner parts from each above it."""
        ended = [f"{name} ended early: {reason}" for name, reason in self.ended.items()]
        return [*ended, *map(str, self.pairs())]

    def pairs(self) -> list[Pair]:
        """Return where each learner parts from each above it."""
        names = list(self.updates)
        return [self._pair(one, other) for place, other in enumerate(names) for one in names[:place]]

    def _pair(self, one: str, other: str) -> Pair:
        for first, second in zip(self.updates[one], self.updates[other], strict=False):
            if what := _difference(first, second):
                return Pair(one, other, second.update, what)
        return Pair(one, other, None, "")

    def rows(self) -> list[LearnerRow]:
        """Return a row for each learner."""
        pairs = self.pairs()
        first = next((fed for name, fed in self.updates.items() if name != RECORDED), ())
        return [
            _row(name, fed, first, {pair.one: pair.update for pair in pairs if pair.other == name})
            for name, fed in self.updates.items()
        ]

    def write(self, out: LabelledSet) -> None:
        """Write a row for each update, and rows and pairs into ``about.json``."""
        fed = [each for updates in self.updates.values() for each in updates]
        out.write_rows("updates", _SCHEMA, [[_stored(each, name) for name in _SCHEMA] for each in fed])
        out.about |= msgspec.to_builtins(
            {"learners": self.rows(), "pairs": self.pairs(), "ended": self.ended}
        )

    def sections(self) -> list[Section]:
        """Return curves by update, and the same minus those of the first learner fed, batch by batch."""
        fed = {name: updates for name, updates in self.updates.items() if name != RECORDED}
        first, *others = fed
        curves = [_chart(name, says, self.updates, name, {}) for name, says in _CURVES.items()]
        below = {each.update: each for each in fed[first]}
        # Learners without a line keep the colours of the others.
        shown = {name: self.updates[name] if name in others else () for name in self.updates}
        paired = [
            _chart(f"{name} minus {first}'s", says, shown, name, below) for name, says in _CURVES.items()
        ]
        sections = [Section("Beside each other", "Each update is one batch, the same for all.", curves)]
        if others:
            says = f"The difference from {first} at the same batch: what is common to all falls out."
            sections.append(Section("In pairs", says, paired))
        return sections


_CURVES: Final = {
    "reward_gain": "How much more reward the learner's policy would have had where the players moved, as an "
    "estimate by importance weights, before it trains on the batch.",
    "effective_samples": "How many of the batch's answers the estimate rests on, as a share: near 0 it says "
    "nothing.",
    "loss": "What the update lowers; algorithms differ in what that is.",
    "entropy": "How undecided the policy is, in nats a token.",
    "approx_kl": "How far the policy is from those that played, in nats a token.",
    "grad_norm": "The length of the gradient before it is clipped.",
}


def _chart(
    title: str,
    says: str,
    updates: Mapping[str, Sequence[FedUpdate]],
    name: str,
    below: Mapping[int, FedUpdate],
) -> Chart:
    """Return the lines of a number of updates; with ``below``, minus that of the same update there."""
    series = []
    for place, (variant, fed) in enumerate(updates.items()):
        points = {each.update: _number(each, name) for each in fed}
        if below:
            under = {number: _number(each, name) for number, each in below.items()}
            points = {
                number: value - base
                for number, value in points.items()
                if value is not None and (base := under.get(number)) is not None
            }
        kept = thin([{"x": number, "y": value} for number, value in points.items() if value is not None])
        x, y = [float(row["x"]) for row in kept], [finite(row["y"]) for row in kept]
        series.append(Series(variant, x, y, colour=place))
    key = f"{name}-pairs" if below else name
    return Chart(key, title, says, BY_UPDATE, name, [line for line in series if line.x])


def _row(
    name: str, fed: Sequence[FedUpdate], first: Sequence[FedUpdate], differs_at: Mapping[str, int | None]
) -> LearnerRow:
    shares = [each.effective_samples for each in fed if each.effective_samples is not None]
    gains = _gains(fed[len(fed) // 2 :])
    below = {} if fed is first else _gains(first)
    more = [gain - below[number] for number, gain in gains.items() if number in below]
    over = interval_of_sum([more]) if len(more) > 1 else None
    last = fed[-1].metrics if fed else {}
    return LearnerRow(
        variant=name,
        updates=len(fed),
        steps=sum(each.steps for each in fed),
        loss=last.get("loss"),
        entropy=last.get("entropy"),
        approx_kl=last.get("approx_kl"),
        effective_samples=fmean(shares) if shares else None,
        lowest_effective_samples=min(shares, default=None),
        reward_gain=fmean(gains.values()) if gains else None,
        over_first=over.mean if over else None,
        low=over.low if over else None,
        high=over.high if over else None,
        differs_at=differs_at,
    )


def _gains(fed: Sequence[FedUpdate]) -> dict[int, float]:
    return {each.update: each.reward_gain for each in fed if each.reward_gain is not None}


def _difference(one: FedUpdate, other: FedUpdate) -> str:
    """Return in words what differs between two updates; empty: nothing that both have."""
    names = sorted((one.metrics.keys() & other.metrics.keys()) - {_NOT_COMPARED}, key=_order)
    differing = [name for name in names if one.metrics[name] != other.metrics[name]]
    said = [
        f"{name} is {other.metrics[name]:.9g}, not {one.metrics[name]:.9g}" for name in differing[:_NAMED]
    ]
    if len(differing) > _NAMED:
        said.append(f"{len(differing) - _NAMED} more metrics")
    if None not in (one.weights_sha256, other.weights_sha256) and one.weights_sha256 != other.weights_sha256:
        said.append("the weights")
    return ", ".join(said)


def _order(name: str) -> tuple[bool, str]:
    return name not in ("learning_rate", "loss"), name  # what was set comes before what follows from it


def _number(fed: FedUpdate, name: str) -> float | None:
    """Return one of :data:`_CURVES`; ``None``: the update has none."""
    own = getattr(fed, name, None)
    return fed.metrics.get(name) if own is None else float(own)


def _stored(fed: FedUpdate, column: str) -> Any:
    """``Any``: a value of one of the columns' types."""
    value = getattr(fed, column)
    return sorted(value.items()) if column == "metrics" else value
