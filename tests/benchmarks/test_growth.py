"""Curves are drawn where their numbers are; a run of the benchmark counts what it is meant to count."""

from xml.etree import ElementTree

import pytest

from benchmarks.curves import curves
from benchmarks.growth.__main__ import GROWING

_SVG = "{http://www.w3.org/2000/svg}"


def test_a_flat_curve_is_level_and_one_ten_times_higher_each_time_is_straight() -> None:
    flat = [(10.0, 2.0), (1000.0, 2.0)]
    straight = [(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)]
    picture = ElementTree.fromstring(curves({"flat": flat, "straight": straight}, below="games"))
    lines = [line.attrib["points"].split() for line in picture.iter(f"{_SVG}polyline")]
    places = [[tuple(map(float, point.split(","))) for point in line] for line in lines]
    assert places[0][0][1] == places[0][1][1]
    (x0, y0), (x1, y1), (x2, y2) = places[1]
    assert (x1 - x0, y1 - y0) == pytest.approx((x2 - x1, y2 - y1), abs=0.2)
    assert y2 < y0
    texts = {text.text for text in picture.iter(f"{_SVG}text")}
    assert {"flat", "straight", "games", "1e2"} <= texts


@pytest.mark.parametrize("what", GROWING)
def test_counting_begins_once_as_many_steps_wait_as_may(what: str) -> None:
    counts, run_with = GROWING[what]
    assert list(counts) == sorted(counts)
    for count in counts:
        run = run_with(count)
        assert 0 < run.after < run.updates
        assert run.after * run.batch_size > run.waiting
