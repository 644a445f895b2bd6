"""Whom the latest checkpoint is shown against: no number mixes opponents."""

from pathlib import Path

import msgspec
import pytest

from tests.archive.history import made_up_run
from tests.places import archived
from unstable_stream.events import Event, GameOutcome
from unstable_stream.history.views.report.reading import read_results
from unstable_stream.history.views.results import Point, most_telling, read_telling
from unstable_stream.history.views.run_list import list_runs
from unstable_stream.runs.run_view import Matchup


def _point(update: int, share: float, games: int = 100) -> Point:
    return Point(update, share, share - 0.1, share + 0.1, games)


def _curves(env: str = "Tak", model: str | None = None, **points: list[Point]) -> dict[Matchup, list[Point]]:
    return {Matchup(env, opponent, model): curve for opponent, curve in points.items()}


def test_the_opponent_nearest_to_one_half_tells_most_of_the_latest_checkpoint() -> None:
    curves = _curves(
        beaten=[_point(0, 0.5), _point(10, 0.99)],
        never=[_point(0, 0.5), _point(10, 0.01)],
        tells=[_point(0, 0.1), _point(10, 0.7)],
        dropped=[_point(0, 0.5)],  # not met by the latest
    )
    found = most_telling(curves)
    assert found is not None
    assert (found.against, found.latest.share) == ("against tells", 0.7)
    assert [point.update for point in found.points] == [0, 10]
    assert most_telling({}) is None


def test_of_two_as_near_the_one_with_most_games_is_shown() -> None:
    found = most_telling(_curves(few=[_point(1, 0.7, 50)], many=[_point(1, 0.3, 60)]))
    assert found is not None
    assert found.met.opponent == "many"


def test_each_trained_model_has_a_latest_checkpoint_and_each_game_is_named() -> None:
    behind = _curves(model="black", tells=[_point(3, 0.5)])
    found = most_telling(_curves(model="white", other=[_point(9, 0.8)]) | behind)
    assert found is not None
    assert found.against == "against tells by black"
    several = most_telling(_curves(a=[_point(1, 0.5)]) | _curves(env="Nim", a=[_point(1, 0.9)]))
    assert several is not None
    assert several.against == "against a in Tak"
    alone = most_telling(_curves(alone=[_point(1, 0.5)]))
    assert alone is not None
    assert alone.against == "alone"


def _met_minimax_as_seat_1(event: Event) -> Event:
    """The evaluation game of each checkpoint that it always loses is against another opponent."""
    if not isinstance(event, GameOutcome) or event.split != "eval" or event.game_index % 2 == 0:
        return event
    seats = [
        msgspec.structs.replace(seat, model_uid="minimax") if seat.model_uid == "random" else seat
        for seat in event.seats
    ]
    return msgspec.structs.replace(event, seats=tuple(seats))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From the second checkpoint on each always beats ``random`` and never ``minimax``."""
    events = map(_met_minimax_as_seat_1, made_up_run(updates=3))
    return archived(tmp_path_factory.mktemp("mixed"), list(events))


def test_one_always_beaten_and_one_never_are_not_averaged_to_one_half(mixed: Path) -> None:
    (run,) = list_runs(mixed)
    assert run.telling is not None
    # Both are as far from one half, with a game each: the first by name. Wilson, 0 of 1: up to 0.7935.
    assert (run.telling.against, run.telling.latest.share, run.telling.latest.games) == (
        "against minimax",
        0.0,
        1,
    )
    assert run.telling.latest.low == 0.0
    assert run.telling.latest.high == pytest.approx(0.7935, abs=1e-4)
    assert [point.share for point in run.telling.points] == [0.0] * 4


def test_the_report_and_one_run_alone_have_the_same_numbers(mixed: Path) -> None:
    (all_of_them,) = read_telling(mixed).values()
    assert read_telling(mixed, "run-a") == {"run-a": all_of_them}
    assert read_telling(mixed, "run-z") == {}
    rows = [row for row in read_results(mixed, "run-a") if row["opponent"] == "minimax"]
    assert [
        Point(*(row[name] for name in ("version", "win_rate", "low", "high", "games"))) for row in rows
    ] == [*all_of_them.points]
