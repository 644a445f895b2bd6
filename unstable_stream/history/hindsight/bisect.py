"""Find the update at which a run got worse, with few measurements, and what is unusual about it.

The search halves what is left between a good and a bad update, as ``git bisect`` does: of n checkpoints it
measures at most log2(n) + 2, rounded up. If a number falls once and stays low, the answer is the update of
the fall; otherwise it is one at which the number crosses the middle between its values at the two ends.

Win rates are compared in pairs. All checkpoints play the same games, with the same seeds and seats, so what
is easy or hard about a game falls out of the difference. At the two ends the difference of their results
counts, from -1 to 1 in each game; at a checkpoint between them, its result minus the mean of both ends'
results: is it more like the good or like the bad one? Games are added until the interval of the mean
difference leaves 0 out. It is :func:`~unstable_stream.algorithms.intervals.sequential_interval`, which may be
looked at as often as one likes. The allowed error is divided by the number of decisions (Bonferroni): where
all of them were reached, the answer is wrong with at most this probability. Where the games end before, the
sign of the mean decides, and the checkpoint is marked as not certain.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, NamedTuple, TypeAlias

from unstable_stream.algorithms.intervals import Interval, sequential_interval

Game: TypeAlias = tuple[str, int]
"""Environment and seed."""
Results: TypeAlias = Mapping[Game, float]
"""By game, the result of a checkpoint: 1 if it won, else 0."""
_FEWEST_NEIGHBOURS: Final = 5
NEIGHBOURS: Final = 10
"""Updates before the one that is looked at, and as many after it."""
_UNUSUAL: Final = 3.5
"""From this score on a value is unusual: B. Iglewicz and D. C. Hoaglin, How to Detect and Handle Outliers
(1993)."""


class Ends(NamedTuple):
    """Two updates next to each other among those that can be measured."""

    good: int
    bad: int


def find_fall(candidates: Sequence[int], judge: Callable[[int], bool | None]) -> Ends:
    """Return the last good and the first bad update.

    Args:
        candidates: updates in order, two or more; the first is known to be good, the last to be bad.
        judge: whether an update is good; ``None``: it cannot be measured, and is left out.
    """
    left = list(candidates)
    while len(left) > 2:
        place = len(left) // 2
        good = judge(left[place])
        if good is None:
            del left[place]
        else:
            left = left[place:] if good else left[: place + 1]
    return Ends(*left)


def decisions(candidates: int) -> int:
    """Return how many decisions a search takes at most, with that between the ends."""
    return 1 + math.ceil(math.log2(max(1, candidates - 1)))


def block_sizes(first: int, most: int) -> list[int]:
    """Return how many games are added each time: twice as many are played in all, up to ``most``."""
    sizes = [min(first, most)]
    while (played := sum(sizes)) < most:
        sizes.append(min(played, most - played))
    return sizes


class PairedGames:
    """Compares checkpoints in the same games, of which it plays as many as decide."""

    def __init__(self, play: Callable[[int, int], Results], blocks: int, alpha: float) -> None:
        """Take what plays, and the allowed error of one decision.

        Args:
            play: returns the results of an update in a block of games, the same for all updates.
            blocks: there are so many blocks.
            alpha: the probability that a decision is wrong.
        """
        self._play = play
        self._blocks = blocks
        self._alpha = alpha
        self._played: dict[int, list[Results]] = {}

    def difference(self, good: int, bad: int) -> Interval:
        """Return by how much the results of one update are better than those of another."""
        return self._compared({good: 1.0, bad: -1.0})

    def towards_good(self, update: int, ends: Ends) -> Interval:
        """Return by how much the results of an update are better than the mean of both ends' results."""
        return self._compared({update: 1.0, ends.good: -0.5, ends.bad: -0.5})

    def rate(self, update: int) -> tuple[float, int]:
        """Return the mean result of an update that was compared, and its number of games."""
        results = [result for block in self._played[update] for result in block.values()]
        return fmean(results), len(results)

    def _compared(self, weights: Mapping[int, float]) -> Interval:
        differences: list[float] = []
        interval = Interval(0.0, -1.0, 1.0)
        for number in range(self._blocks):
            played = {update: self._block(update, number) for update in weights}
            shared = set.intersection(*map(set, played.values()))
            differences += [
                sum(weights[update] * played[update][game] for update in weights) for game in shared
            ]
            interval = sequential_interval(differences, self._alpha)
            if interval.low > 0 or interval.high < 0:
                break
        return interval

    def _block(self, update: int, number: int) -> Results:
        blocks = self._played.setdefault(update, [])
        while len(blocks) <= number:
            blocks.append(self._play(update, len(blocks)))
        return blocks[number]


@dataclass(frozen=True, slots=True)
class Unusual:
    """A number of an update that its neighbours do not have."""

    update: int
    name: str
    value: float
    usual: float
    """The median of the neighbours."""
    score: float
    """The distance from it in standard deviations, by the median absolute deviation; infinite where all
    neighbours are alike."""

    def __str__(self) -> str:
        far = "all the others alike" if math.isinf(self.score) else f"{self.score:+.1f} deviations"
        return f"{self.name} {self.value:.4g}, usually {self.usual:.4g} ({far})"


def find_unusual(numbers: Mapping[int, Mapping[str, float]], ends: Ends) -> list[Unusual]:
    """Return what is unusual about the updates after the good one, up to the bad one, the strongest first.

    Their neighbours are the updates before: what comes after a bad update follows from it. Where these are
    fewer than five, those after it count too.

    Args:
        numbers: by update, its numbers by name.
        ends: the last good update and the first bad one.
    """
    before = [each for update, each in numbers.items() if ends.good - NEIGHBOURS < update <= ends.good]
    after = [each for update, each in numbers.items() if ends.bad < update <= ends.bad + NEIGHBOURS]
    neighbours = before if len(before) >= _FEWEST_NEIGHBOURS else before + after
    unusual = []
    for update in range(ends.good + 1, ends.bad + 1):
        for name, value in numbers.get(update, {}).items():
            beside = [each[name] for each in neighbours if name in each]
            score = robust_score(value, beside)
            if abs(score) >= _UNUSUAL:
                unusual.append(Unusual(update, name, value, median(beside), score))
    return sorted(unusual, key=lambda each: -abs(each.score))


def robust_score(value: float, neighbours: Iterable[float]) -> float:
    """Return the distance from the neighbours' median in standard deviations, estimated from the median
    absolute deviation, or from the mean one where that is 0; 0 for fewer than three neighbours.
    """
    beside = list(neighbours)
    if len(beside) < 3:
        return 0.0
    middle = median(beside)
    distance = value - middle
    if abs(distance) <= 1e-6 * abs(middle):
        return 0.0
    distances = [abs(each - middle) for each in beside]
    spread = 1.4826 * median(distances) or 1.2533 * fmean(distances)
    return distance / spread if spread else math.copysign(math.inf, distance)
