"""How many engines a run shall have, by table."""

import pytest

from tests.builders import made
from unstable_stream.events import EnginesWanted
from unstable_stream.runs.engine_sections import EngineRange
from unstable_stream.services.launch.ray.engine_pool import WantedEngines

RANGE = EngineRange(min=2, max=8)


def wanted(configured: int | EngineRange, *by_person: int | None) -> WantedEngines:
    fold = WantedEngines(configured)
    asked = [("run-a", engines) for engines in by_person] + [("run-b", 99)]
    fold.apply([made(EnginesWanted, run_id=run, engines=engines) for run, engines in asked], "run-a")
    return fold


@pytest.mark.parametrize(
    ("configured", "by_person", "room", "count", "why"),
    [
        (3, (), 1, 3, "collector.num_actors is 3"),
        (RANGE, (), 0, 2, "the cluster has room, up to 8"),
        (RANGE, (), 5, 5, "the cluster has room, up to 8"),
        (RANGE, (), 20, 8, "the cluster has room, up to 8"),
        (RANGE, (1,), 5, 1, "a person wants 1"),
        (RANGE, (12,), 5, 12, "a person wants 12"),
        (3, (12, 4), 1, 4, "a person wants 4"),
        (RANGE, (12, None), 5, 5, "the cluster has room, up to 8"),
    ],
)
def test_the_last_word_of_a_person_counts_else_the_room(
    configured: int | EngineRange, by_person: tuple[int | None, ...], room: int, count: int, why: str
) -> None:
    found = wanted(configured, *by_person)
    assert (found.count(room), found.why()) == (count, why)
