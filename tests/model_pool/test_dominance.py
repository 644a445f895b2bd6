"""Cycles among players and their shares by alpha-rank, worked out by hand."""

from itertools import pairwise

import pytest

from unstable_stream.algorithms.intervals import wilson_interval
from unstable_stream.model_pool.dominance import Meeting, alpha_rank, cycles

Meetings = dict[tuple[str, str], Meeting]


def met(results: dict[str, float], games: int = 100) -> Meetings:
    """Return the meetings, of both orders, of pairs such as ``"ab"``."""
    both = [(tuple(pair), score) for pair, score in results.items()]
    return {
        (one, other): Meeting(won, games)
        for (a, b), score in both
        for one, other, won in ((a, b, score), (b, a, 1 - score))
    }


ROCK_PAPER_SCISSORS = {"ab": 0.7, "bc": 0.65, "ca": 0.7}


@pytest.mark.parametrize("games", [4, 10, 97, 400])
def test_a_score_beats_where_wilsons_interval_excludes_one_half(games: int) -> None:
    for points in range(2 * games + 1):
        low, _ = wilson_interval(points / 2, games)
        assert Meeting(points / 2 / games, games).beats == (low > 0.5)


def test_in_rock_paper_scissors_all_are_worth_the_same() -> None:
    found = met(ROCK_PAPER_SCISSORS)
    assert alpha_rank(found) == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert cycles(found) == [("a", "b", "c")]


def test_a_dominant_player_has_nearly_all() -> None:
    """``b`` and ``c`` have the same, and with ``a`` as much goes as comes: 0.01 a = 0.99 b."""
    found = met({"ab": 0.9, "ac": 0.9, "bc": 0.5})
    shares = alpha_rank(found)
    assert shares == pytest.approx({"a": 0.99 / 1.01, "b": 0.01 / 1.01, "c": 0.01 / 1.01})
    assert cycles(found) == []


def test_a_weak_player_beside_a_cycle_is_worth_almost_nothing() -> None:
    """It gets 0.01 of the share x of the three, and loses 0.99 to each of them: 0.01 (1 - w) = 2.97 w."""
    found = met({**ROCK_PAPER_SCISSORS, "aw": 0.95, "bw": 0.95, "cw": 0.95})
    weak = 0.01 / 2.98
    assert alpha_rank(found) == pytest.approx({**dict.fromkeys("abc", (1 - weak) / 3), "w": weak})
    assert cycles(found) == [("a", "b", "c")]


def test_what_may_be_chance_is_no_cycle_and_makes_equals() -> None:
    found = met(ROCK_PAPER_SCISSORS, games=6)
    assert cycles(found) == []
    assert alpha_rank(met({"ab": 0.7}, games=6)) == {"a": 0.5, "b": 0.5}


def test_the_surest_cycle_is_named_first() -> None:
    first = met({"ab": 0.62, "bc": 0.9, "ca": 0.9})
    second = met({"xy": 0.7, "yz": 0.7, "zx": 0.7})
    assert cycles({**first, **second}) == [("x", "y", "z"), ("a", "b", "c")]


def test_players_that_never_met_do_not_replace_each_other() -> None:
    """A chain ``a`` beats ``b`` beats ``c``: each has 99 times the share of the next."""
    found = met({"ab": 0.9, "bc": 0.9})
    whole = 99 * 99 + 99 + 1
    assert alpha_rank(found) == pytest.approx({"a": 9801 / whole, "b": 99 / whole, "c": 1 / whole})


def test_what_no_meeting_links_cannot_be_compared() -> None:
    assert alpha_rank(met({"ab": 0.9, "cd": 0.9})) == {}
    assert alpha_rank({}) == {}
    assert cycles({}) == []


def test_shares_add_up_to_one_in_a_large_field() -> None:
    names = [chr(ord("A") + number) for number in range(50)]
    found = met({one + other: 0.9 for one, other in pairwise(names)} | {"AZ": 0.5})
    assert sum(alpha_rank(found).values()) == pytest.approx(1)
