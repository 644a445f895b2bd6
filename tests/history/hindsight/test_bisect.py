"""A planted fall is found in at least 19 of 20 simulated runs, in few evaluations; what is odd is named."""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unstable_stream.history.hindsight.bisect import (
    Ends,
    Game,
    PairedGames,
    Unusual,
    block_sizes,
    decisions,
    find_fall,
    find_unusual,
    robust_score,
)

GAMES = block_sizes(50, 400)


class SimulatedRun(NamedTuple):
    """A policy that gets better by and by, is broken by one update, and gets better again from there."""

    updates: int
    broken: int
    rate: Callable[[int], float]
    seed: int

    @classmethod
    def of(cls, seed: int) -> "SimulatedRun":
        chance = random.Random(seed)
        updates = chance.randrange(10, 200)
        broken = chance.randrange(1, updates)
        level, fall = chance.uniform(0.5, 0.8), chance.uniform(0.3, 0.45)

        def rate(update: int) -> float:
            rises = 0.1 * update / updates
            return level + rises - (fall if update >= broken else 0.0)

        return cls(updates, broken, rate, seed)

    def play(self, update: int, block: int) -> dict[Game, float]:
        """A game is hard or easy for all updates; the rest is the chance of this update's answers."""
        results = {}
        for number in range(GAMES[block]):
            of_game = random.Random(f"{self.seed} {block} {number}").uniform(-0.2, 0.2)
            own = random.Random(f"{self.seed} {block} {number} {update}").random()
            results["game", 1000 * block + number] = float(own < self.rate(update) + of_game)
        return results


def found_in(run: SimulatedRun) -> tuple[Ends, list[int]]:
    """Return the answer and the updates that were evaluated."""
    asked: list[int] = []

    def play(update: int, block: int) -> dict[Game, float]:
        asked.append(update)
        return run.play(update, block)

    candidates = range(run.updates + 1)
    pairs = PairedGames(play, len(GAMES), 0.05 / decisions(len(candidates)))
    ends = Ends(0, run.updates)
    assert pairs.difference(*ends).low > 0
    last = find_fall(candidates, lambda update: pairs.towards_good(update, ends).mean > 0)
    return last, sorted(set(asked))


def test_a_planted_bad_update_is_found_in_19_of_20_runs() -> None:
    runs = [SimulatedRun.of(seed) for seed in range(20)]
    right = 0
    for run in runs:
        last, evaluated = found_in(run)
        right += last == (run.broken - 1, run.broken)
        assert len(evaluated) <= math.ceil(math.log2(run.updates + 1)) + 2
    assert right >= 19


def test_games_are_added_only_until_they_decide() -> None:
    sizes = []

    def play(update: int, block: int) -> dict[Game, float]:
        sizes.append(GAMES[block])
        chance = random.Random(f"{update} {block}")
        return {
            ("game", number): float(chance.random() < (0.9 if update < 3 else 0.1)) for number in range(50)
        }

    pairs = PairedGames(play, len(GAMES), 0.01)
    assert pairs.difference(0, 4).low > 0
    assert sizes == [50, 50]
    assert pairs.rate(0)[1] == 50


def test_equal_checkpoints_play_all_games_and_do_not_fall() -> None:
    pairs = PairedGames(lambda update, block: dict.fromkeys([("game", block)], 1.0), 4, 0.01)
    interval = pairs.difference(0, 1)
    assert interval.mean == 0.0
    assert interval.low < 0 < interval.high
    assert pairs.rate(1) == (1.0, 4)


def test_twice_as_many_games_each_time_up_to_the_most() -> None:
    assert block_sizes(50, 400) == [50, 50, 100, 200]
    assert block_sizes(50, 120) == [50, 50, 20]
    assert block_sizes(50, 30) == [30]


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=300, unique=True), st.data())
def test_what_cannot_be_measured_is_left_out(updates: list[int], data: st.DataObject) -> None:
    """The answer is the last good and the first bad one of those that can be measured."""
    candidates = sorted(updates)
    broken = data.draw(st.sampled_from(candidates[1:]))
    lost = set(data.draw(st.lists(st.sampled_from(candidates[1:-1] or [-1]))))
    asked: list[int] = []

    def judge(update: int) -> bool | None:
        asked.append(update)
        return None if update in lost else update < broken

    left = [update for update in candidates if update not in lost]
    assert find_fall(candidates, judge) == Ends(
        max(update for update in left if update < broken), min(update for update in left if update >= broken)
    )
    assert len(set(asked)) == len(asked)
    assert len(asked) - len(lost & set(asked)) <= decisions(len(candidates)) - 1


USUAL = {
    "learning rate": [0.001] * 6,
    "correlation of reward and result": [0.9, 0.92, 0.88, 0.91, 0.9, 0.93],
    "staleness": [1.0, 1.1, 0.9, 1.2, 1.0, 1.1],
}


@pytest.mark.parametrize(
    ("name", "value"),
    [("learning rate", 0.1), ("correlation of reward and result", -0.9), ("staleness", 4.0)],
)
def test_the_number_that_its_neighbours_do_not_have_is_named(name: str, value: float) -> None:
    numbers = {update: {key: row[update - 1] for key, row in USUAL.items()} for update in range(1, 7)}
    numbers[7] = numbers[6] | {name: value}
    numbers[8] = dict.fromkeys(USUAL, 1000.0)
    (only,) = find_unusual(numbers, Ends(6, 7))
    assert (only.update, only.name, only.value) == (7, name, value)
    assert ("all the others alike" in str(only)) == (name == "learning rate")


def test_few_updates_before_are_joined_by_those_after() -> None:
    numbers = {update: {"entropy": 1.0 + update / 100} for update in range(1, 9)}
    assert find_unusual(numbers, Ends(1, 2)) == []
    numbers[2] = {"entropy": 0.1}
    assert [each.update for each in find_unusual(numbers, Ends(1, 2))] == [2]
    assert find_unusual({1: {"entropy": 1.0}, 2: {"entropy": 9.0}}, Ends(1, 2)) == []
    assert find_unusual({}, Ends(1, 2)) == []


def test_the_score_by_hand() -> None:
    """Median 3, median absolute deviation 1; and where that is 0, a mean absolute deviation of 1."""
    assert robust_score(7.0, [1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(4 / 1.4826)
    assert robust_score(4.0, [3.0, 3.0, 3.0, 3.0, 8.0]) == pytest.approx(1 / 1.2533)
    assert robust_score(4.0, [3.0, 3.0, 3.0]) == math.inf
    assert robust_score(3.0 + 1e-9, [3.0, 3.0, 3.0]) == 0.0
    assert str(Unusual(1, "staleness", 4.0, 1.0, 5.25)) == "staleness 4, usually 1 (+5.2 deviations)"
