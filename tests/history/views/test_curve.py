"""The curve of a run's evaluation as text."""

from pathlib import Path

from rich.console import Console

from unstable_stream.history.views.curve import Curve, Point, read_curve

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
    curve = Curve.of({"first-legal": POINTS, "random-legal": POINTS[:2]})
    assert curve is not None
    assert (curve.opponent, list(curve.points)) == ("random-legal", POINTS[:2])
    other = Curve.of({"first-legal": POINTS, "random-legal": POINTS[:1]})
    assert other is not None
    assert other.opponent == "first-legal"
    assert Curve.of({"random-legal": POINTS[:1]}) is None


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
