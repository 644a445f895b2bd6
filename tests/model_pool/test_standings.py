"""The standings of a tournament, folded from outcomes and ratings."""

import pytest

from tests.builders import made
from tests.model_pool.outcomes import make_outcome
from unstable_stream.events import OVERALL, Rating
from unstable_stream.model_pool.standings import Standings


def rating(uid: str, games: int, mu: float, env_id: str = OVERALL) -> Rating:
    return made(Rating, env_id=env_id, model_uid=uid, mu=mu, sigma=1.0, games=games, game_id=f"g{games}")


def test_a_ladder_by_hand() -> None:
    standings = Standings()
    games = [
        make_outcome(0, {0: ("a", 1), 1: ("b", -1)}, split="eval"),
        make_outcome(1, {0: ("b", -1), 1: ("a", 1)}, split="eval", invalid_seat=0),
        make_outcome(2, {0: ("a", 0), 1: ("b", 0)}, split="eval"),
        make_outcome(3, {0: ("b", 1), 1: ("a", -1)}, split="eval", invalid_seat=1),
        make_outcome(4, {0: ("c", 1), 1: ("b", -1)}, split="eval"),
        make_outcome(0, {0: ("a", -1), 1: ("b", 1)}),  # of training: does not count
        make_outcome(5, {0: ("a", 1), 1: ("a", -1)}, split="eval"),  # nor does oneself
    ]
    for event in (*games, *games, rating("a", 4, 27.0), rating("a", 3, 9.0), rating("a", 9, 1.0, "Env-v0")):
        standings.apply(event)
    first, second, third = sorted(standings.ladder(), key=lambda row: row.player)
    assert (first.games, first.wins, first.draws, first.losses) == (4, 2, 1, 1)
    assert (first.wins_by_invalid, first.losses_by_invalid) == (1, 1)
    assert (first.score, first.mu, first.sigma) == (0.625, 27.0, 1.0)
    assert (second.games, second.wins, second.draws, second.losses) == (5, 1, 1, 3)
    assert second.against == {"a": 0.375, "c": 0.0}
    assert (third.score, third.mu, third.against) == (1.0, None, {"b": 1.0})
    assert [row.rank for row in standings.ladder()] == [1, 2, 3]
    assert sum(row.elo for row in standings.ladder()) == pytest.approx(0)


def test_games_without_chance_count_once_for_a_strength() -> None:
    """``a`` beats ``b`` in one game over and over in one seat order, and in two others in the other."""
    seats, turned = {0: ("a", 1), 1: ("b", -1)}, {0: ("b", -1), 1: ("a", 1)}
    repeated, once = Standings(), Standings()
    for index in range(8):
        repeated.apply(make_outcome(index, seats, split="eval", actions=["same"]))
    once.apply(make_outcome(0, seats, split="eval", actions=["same"]))
    for standings in (repeated, once):
        for index, move in enumerate(("one", "other"), 8):
            standings.apply(make_outcome(index, turned, split="eval", actions=[move]))
    strengths = [[(row.player, row.elo, row.elo_low) for row in each.ladder()] for each in (repeated, once)]
    assert strengths[0] == strengths[1]
    assert [row.games for row in repeated.ladder()] == [10, 10]


def test_in_a_game_of_three_each_pair_of_seats_counts() -> None:
    standings = Standings()
    standings.apply(make_outcome(0, {0: ("a", 1), 1: ("b", 0), 2: ("b", -1)}, split="eval"))
    first, last = standings.ladder()
    assert (first.player, first.wins, first.games, last.losses) == ("a", 2, 2, 2)


def test_standings_say_how_sure_the_order_is_and_what_each_is_worth() -> None:
    """``a`` wins all games against ``b``, who draws with ``c``: 0.99 of the share of ``b`` flows to ``a`` for
    0.01 back, and ``b`` and ``c`` share equally.
    """
    standings = Standings()
    for index in range(40):
        standings.apply(make_outcome(2 * index, {0: ("a", 1), 1: ("b", -1)}, split="eval"))
        standings.apply(make_outcome(2 * index + 1, {0: ("b", 0), 1: ("c", 0)}, split="eval"))
    best, *others = standings.ladder()
    assert best.alpha_rank == pytest.approx(99 / 101)
    assert [row.alpha_rank for row in others] == pytest.approx([1 / 101, 1 / 101])
    assert best.player == "a"
    assert best.ahead_of_next is not None
    assert best.ahead_of_next > 0.99
    assert others[0].ahead_of_next == pytest.approx(0.5, abs=0.05)
    assert others[1].ahead_of_next is None
    assert standings.meetings()["a", "b"] == (1.0, 40)
    assert ("a", "c") not in standings.meetings()


def test_without_a_game_nobody_stands() -> None:
    assert Standings().ladder() == []
