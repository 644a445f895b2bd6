"""A person plays a checkpoint: recorded in a run of its own, rated, archived, and to be replayed."""

import time

import pytest

import unstable_stream as us
from tests.api.untrained_run import record_untrained_run
from unstable_stream.api.human_play import HumanGame, State
from unstable_stream.api.place import Place
from unstable_stream.archive import query
from unstable_stream.errors import ConfigError
from unstable_stream.games.opponents.legal_moves import listed_moves
from unstable_stream.history.views.people import people_games, standings

RUN = "run-asked"
_DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run of the tiny player that has its initial policy."""
    place = Place.at(tmp_path_factory.mktemp("played"))
    record_untrained_run(place, RUN)
    return place


def wait(game: HumanGame) -> State:
    """Wait until the person is to do something."""
    state = game.wait(_DEADLINE_S)
    assert state in ("yours", "over"), (state, game.says)
    return state


def test_a_game_is_recorded_rated_and_archived(place: Place) -> None:
    game = HumanGame(place, f"{RUN}@0", seat=1, name="Ada").start()
    own = 0
    assert wait(game) == "yours"
    game.move("[99]")
    assert wait(game) == "yours"
    assert game.refused == "[99]"
    while wait(game) == "yours":
        assert "SimpleTak" in game.observation
        game.move(listed_moves(game.observation)[0])
        own += 1
        assert game.refused is None
    assert own
    asked = "SELECT split, state, models, num_turns FROM games WHERE game_id = $1"
    moves = len(game.moves)
    rows = query(place.archive, asked, [game.game_id]).rows
    assert rows == [("human", "finished", ["ckpt-000000", "Ada"], moves)]
    rated = query(place.archive, "SELECT DISTINCT model_uid FROM ratings WHERE run_id = $1", [game.run_id])
    assert {uid for (uid,) in rated.rows} == {"ckpt-000000", "Ada"}
    asked = "SELECT parent_run_id, state FROM runs WHERE run_id = $1"
    assert query(place.archive, asked, [game.run_id]).rows == [(RUN, "completed")]
    # The run it was forked from did not notice.
    assert query(place.archive, "FROM game_outcomes WHERE run_id = $1", [RUN]).rows == []
    recorded = us.open_run(game.run_id, place.root)
    assert recorded.audit().ok
    # The move that was forgiven is forgiven when the game is made again.
    assert recorded.verify().ok


def test_a_person_may_give_up(place: Place) -> None:
    game = HumanGame(place, RUN).start()
    assert wait(game) == "yours"
    with pytest.raises(ConfigError, match="at most"):
        game.move(" ")
    game.give_up()
    assert wait(game) == "over"
    with pytest.raises(ConfigError, match="not your turn"):
        game.move("[1]")
    # Who leaves gives up after a while.
    left = HumanGame(place, RUN, patience_s=0.1).start()
    assert left.wait(60.0, for_=("over", "failed")) == "over"
    for given_up in (game, left):
        rows = query(place.archive, "SELECT state FROM games WHERE game_id = $1", [given_up.game_id]).rows
        assert rows == [("abandoned",)]


def test_a_game_whose_program_ends_is_recorded_as_stopped(place: Place) -> None:
    game = HumanGame(place, RUN).start()
    assert wait(game) == "yours"
    game.end("SIGTERM")
    game.join()
    assert (game.state, game.says) == ("failed", "SIGTERM")
    game.end("SIGTERM")  # it has ended
    (status,) = [status for status in us.list_runs(place.root) if status.run_id == game.run_id]
    assert status.ended is not None
    assert (status.ended.outcome, status.ended.reason) == ("stopped", "SIGTERM")
    assert us.open_run(game.run_id, place.root).audit().ok


def test_two_people_play_at_one_machine(place: Place) -> None:
    since = int(1000 * time.time()) / 1000
    game = HumanGame(place, RUN, name="Ada", other="Bob").start()
    asked = []
    while wait(game) == "yours":
        asked.append(game.to_move)
        game.move(listed_moves(game.observation)[0])
    assert asked == [turn % 2 for turn in range(len(asked))]
    assert game.says.startswith(("Ada won", "Bob won", "Nobody won"))
    kinds = "SELECT model_uid, kind FROM seats WHERE game_id = $1 ORDER BY seat"
    assert query(place.archive, kinds, [game.game_id]).rows == [("Ada", "human"), ("Bob", "human")]
    recorded = us.open_run(game.run_id, place.root)
    assert recorded.audit().ok
    assert recorded.verify().ok
    left = HumanGame(place, RUN, name="Bob", other="Ada").start()
    assert wait(left) == "yours"
    left.give_up()
    assert wait(left) == "over"
    assert left.says == "Bob gave up."
    played = people_games(place.archive, since)
    assert [each.players for each in played] == [("Ada", "Bob"), ("Bob", "Ada")]
    assert played[1].results == ["loss", "win"]
    ada = {each.name: each for each in standings(played)}["Ada"]
    assert ada.won + ada.drawn + ada.lost == 2
    assert ada.won >= 1


def test_who_has_no_time_left_loses(place: Place) -> None:
    since = int(1000 * time.time()) / 1000
    game = HumanGame(place, RUN, name="Ada", other="Bob", clock_s=1.0).start()
    assert wait(game) == "yours"
    game.move("[1]")
    assert game.wait(_DEADLINE_S, for_=("over", "failed")) == "over"
    assert "Bob lost: the time is over" in game.says
    assert game.left_s(1) == 0
    spent = game.moves[0].latency_ms
    assert spent is not None
    assert game.left_s(0) == pytest.approx(1 - spent / 1000)
    reason = "SELECT reason, state FROM games WHERE game_id = $1"
    assert query(place.archive, reason, [game.game_id]).rows == [
        ("the person in seat 1 ran out of time", "abandoned")
    ]
    assert standings(people_games(place.archive, since)) == [("Ada", 1, 0, 0), ("Bob", 0, 0, 1)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"policy": RUN, "name": "Ada", "other": " Ada"}, "choose two names"),
        ({"policy": RUN, "other": "ckpt-1"}, "taken for a checkpoint"),
        ({"policy": RUN, "clock_s": 0.0}, "a clock of 0 s"),
        ({"policy": "tiny-player"}, "names a model"),
        ({"policy": RUN, "seat": 2}, "expected 0 or 1"),
        ({"policy": RUN, "name": "ckpt-000000"}, "choose another"),
        ({"policy": RUN, "env": "Nothing-v0"}, "tiny player"),
    ],
)
def test_what_cannot_be_played_is_said_at_once(
    place: Place, arguments: dict[str, str | float], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        HumanGame(place, **arguments)  # type: ignore[arg-type]  # as given
