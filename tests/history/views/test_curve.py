"""The curve of a run's evaluation as text."""

from pathlib import Path

import msgspec
from rich.console import Console

from tests.archive.history import made_up_run
from tests.places import archived
from unstable_stream.events import GameOutcome
from unstable_stream.history.views.curve import Curve, read_curve
from unstable_stream.history.views.results import Point
from unstable_stream.runs.run_view import Matchup

POINTS = [Point(0, 0.2, 0.1, 0.3, 80), Point(10, 0.5, 0.4, 0.6, 80), Point(20, 0.5, 0.4, 0.6, 80)]


def test_the_curve_rises_from_point_to_point_with_intervals() -> None:
    # 30 characters of two dots: update 10 is dot 30 of 0 to 59. Up there are dots 0 to 39, four a row: 0.2 is
    # dot 8, in the third row from below, 0.5 is dot 20, in the sixth, and 0.4 to 0.6 are dots 16 to 23.
    assert Curve("random-legal", POINTS).lines(36, ascii_only=True) == [
        " 100%|",
        "     |",
        "     |",
        "     |",
        "  50%|              ****************",
        "     |         ******|             |",
        "     ||   ******",
        "     |*****",
        "     ||",
        "     |",
        "   0%+------------------------------",
        "      0      learner update       20",
    ]


def test_each_dot_is_one_of_a_braille_character() -> None:
    shown = Curve("x", [Point(0, 0.0, 0.0, 0.0, 9), Point(1, 1.0, 1.0, 1.0, 9)]).lines(8)
    assert [line[6:] for line in shown[:10]] == [" ⢸", " ⡸", " ⡇", " ⡇", " ⡇", "⢸", "⢸", "⢸", "⡎", "⡇"]


def test_the_curve_is_that_against_random_play_and_of_several_checkpoints() -> None:
    first, legal = Matchup("E", "first-legal"), Matchup("E", "random-legal", "a")
    curve = Curve.of({first: POINTS, legal: POINTS[:2]})
    assert curve is not None
    assert list(curve.points) == POINTS[:2]
    assert curve.says == "evaluation games won against random-legal by a, with 95 % intervals"
    other = Curve.of({first: POINTS, Matchup("F", "random-legal"): POINTS[:1] * 2})
    assert other is not None
    assert other.says == "evaluation games won against first-legal in E, with 95 % intervals"
    alone = Curve.of({Matchup("E", "alone"): POINTS})
    assert alone is not None
    assert alone.says == "evaluation games won alone, with 95 % intervals"
    assert Curve.of({legal: POINTS[:1]}) is None


def test_each_environment_has_a_curve_of_its_own(tmp_path: Path) -> None:
    run = made_up_run(updates=2)
    games = [event for event in run if isinstance(event, GameOutcome) and event.split == "eval"]
    # One evaluation in another environment, of which the name comes first.
    others = [
        msgspec.structs.replace(game, event_id=f"other {number}", game_id=f"other {number}", env_id="A-v0")
        for number, game in enumerate(games[:2])
    ]
    curve = read_curve(archived(tmp_path, [*run, *others]), "run-a")
    assert curve is not None
    assert [point.update for point in curve.points] == [0, 1, 2]
    assert "against random in TicTacToe-v0-train, with" in curve.says


def test_an_archived_run_has_its_curve(archive: Path) -> None:
    curve = read_curve(archive, "run-a")
    assert curve is not None
    assert [(point.update, point.share, point.games) for point in curve.points] == [
        (0, 0.0, 2),
        *((update, 0.5, 2) for update in range(1, 7)),
    ]
    assert curve.says == "evaluation games won against random, with 95 % intervals"
    console = Console(width=40, record=True)
    console.print(curve)
    assert max(map(len, console.export_text().splitlines())) == 40
    narrow = Console(width=5, record=True)
    narrow.print(curve)
    assert len(narrow.export_text().splitlines()) == 12  # the terminal cuts it
