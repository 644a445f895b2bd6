"""Calls into environments that do not return are noticed, and others are not."""

import threading

from tests.workers.test_rollout import started
from unstable_stream.events import GameStarted
from unstable_stream.workers.hung_games import HungGames


def test_a_call_that_does_not_return_is_told_with_its_game() -> None:
    told: list[GameStarted] = []
    noticed = threading.Event()

    def hung(game: GameStarted) -> None:
        told.append(game)
        noticed.set()

    games = HungGames(0.2, hung)
    with games.calling(started(0)):
        pass
    with games.calling(started(1)):
        assert noticed.wait(60), "nobody noticed"
    assert [game.game_index for game in told] == [1]
    games.close()


def test_many_calls_that_return_are_none_that_hangs() -> None:
    looked = threading.Event()
    first, second = started(1), started(2)
    games = HungGames(1.0, lambda _: looked.set())
    timer = threading.Event()
    # More than the limit in all, each call well below it.
    for number in range(75):
        with games.calling(first if number % 2 else second):
            timer.wait(0.02)
    games.close()
    assert not looked.is_set()
