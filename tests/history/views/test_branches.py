"""What positions are worth, where the trained model went on learning between the games from there."""

from pathlib import Path

import msgspec

from tests.archive.history import made_up_run
from tests.places import archived
from tests.ui.web.conftest import shown
from unstable_stream.events import Event, GameOutcome, GamePosition, game_id
from unstable_stream.history.views.branches import Branch, SeatValue, branches_from, courses
from unstable_stream.runs.data_dir import DataDir

PARENT = game_id("run-a", "train", 0)
START = GamePosition(game_id=PARENT, turn=1, seed=0, moves=1)


def _branched(event: Event) -> Event:
    """Let two games of the policy after update 1 and two of the next begin from a position of game 0."""
    branched = isinstance(event, GameOutcome) and event.split == "train" and event.game_index in (4, 6, 8, 10)
    return msgspec.structs.replace(event, position=START) if branched else event


def test_games_of_two_checkpoints_are_two_branches_with_all_of_their_seats(tmp_path: Path) -> None:
    with shown(tmp_path, *map(_branched, made_up_run())) as (client, base):
        found = branches_from(DataDir(tmp_path).archive, PARENT)
        page = client.get(f"{base}/games/{PARENT}")
    assert [[(v.seat, v.player, v.games, v.value) for v in branch.values] for branch in found] == [
        [(0, "ckpt-000001", 2, 0.0), (1, "random", 2, 0.0)],
        [(0, "ckpt-000002", 2, -0.5), (1, "random", 2, 0.5)],
    ]
    assert page.status_code == 200
    # Seat 1 is to move.
    assert "<b>+0.50</b>" in page.text
    assert "ckpt-000002, random" in page.text


def test_games_that_were_all_drawn_may_be_so_by_chance(tmp_path: Path) -> None:
    def drawn(event: Event) -> Event:
        if not isinstance(event, GameOutcome) or event.split != "train" or event.game_index not in (8, 11):
            return event
        seats = tuple(msgspec.structs.replace(each, model_uid=f"player-{each.seat}") for each in event.seats)
        return msgspec.structs.replace(event, position=START, seats=seats)

    archived(tmp_path, [drawn(event) for event in made_up_run()])
    (branch,) = branches_from(DataDir(tmp_path).archive, PARENT)
    assert [(value.games, value.value) for value in branch.values] == [(2, 0.0)] * 2
    assert all(value.low < -1 and value.high > 1 for value in branch.values), "two draws say little"


def _valued(turn: int, low: float, high: float, *, games: int = 9, tried: tuple[str, ...] = ()) -> Branch:
    value = SeatValue(0, "a", games, (low + high) / 2, low, high)
    return Branch("run", turn, tried, [value, SeatValue(1, "b", games, -value.value, -high, -low)])


def test_the_outcome_turned_where_the_value_changed_most_beyond_chance() -> None:
    steady, lost = _valued(2, 0.2, 0.8), _valued(5, -0.9, -0.5)
    others = [_valued(0, 0.3, 0.7), _valued(5, 0.9, 1.0, games=2), _valued(4, -1, -0.9, tried=("[4]",))]
    (course,) = courses([lost, *others, steady, _valued(7, -0.6, 0.4)])
    assert course.players == ("a", "b")
    assert [branch.turn for branch in course.positions] == [0, 2, 5, 7]
    assert course.positions[2] == lost
    assert course.turned == (steady, lost)


def test_a_change_within_chance_is_no_turn_and_one_position_no_course() -> None:
    (course,) = courses([_valued(0, -0.2, 0.6), _valued(2, -0.6, 0.2)])
    assert course.turned is None
    assert courses([_valued(0, 0.1, 0.2)]) == []
