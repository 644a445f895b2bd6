"""First views of a long history take a small multiple of bare queries, and find what the views have."""

import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.archive.history import made_up_run
from tests.archive.many_games import multiply_games
from tests.places import archived
from tests.ui.web.conftest import client_of
from unstable_stream.api.games import find_games
from unstable_stream.api.place import Place
from unstable_stream.archive import query

pytestmark = pytest.mark.longer

_MOST: float = 12.0
"""Times the bare query; 3 to 5 are usual."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A run of sixty thousand games."""
    place = Place.at(tmp_path_factory.mktemp("many"))
    multiply_games(archived(place.root, made_up_run(updates=20)), 500)
    return place


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a run whose games fill many pages."""
    archive = archived(tmp_path_factory.mktemp("pages"), made_up_run(updates=20))
    multiply_games(archive, 10)
    return archive


def _seconds(work: Callable[[], object]) -> float:
    """Return CPU time of all threads, the least of three: other work on the machine does not count."""
    took = []
    for _ in range(3):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took)


def _first_view(place: Place, path: str) -> None:
    with client_of(place) as client:  # which remembers nothing
        assert client.get(f"/{place.root.name}{path}").status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/games", "/games?split=eval", "/runs/run-a", "/runs/run-a/wrong", "/runs/run-a/latest"),
        *("/runs/run-a/results", "/charts.json?run=run-a"),
    ],
)
@pytest.mark.long
def test_a_first_view_takes_little_more_than_its_bare_query(place: Place, path: str) -> None:
    def bare() -> None:
        with duckdb.connect(str(place.data.archive_file), read_only=True) as connection:
            for sql in (
                "SELECT count(*) FROM seats JOIN game_outcomes USING (game_id)",
                "SELECT count(*) FROM update_steps JOIN steps USING (step_id)",
            ):
                connection.execute(sql).fetchall()

    _first_view(place, path)  # templates are read once
    assert _seconds(lambda: _first_view(place, path)) < _MOST * _seconds(bare)


@pytest.mark.parametrize(
    ("filters", "condition"),
    [
        ({}, "true"),
        ({"state": "in-flight"}, "state = 'in-flight'"),
        ({"state": "abandoned"}, "state = 'abandoned'"),
        ({"split": "eval", "min_moves": 5}, "split = 'eval' AND num_turns >= 5"),
        ({"model": "ckpt-000003"}, "list_contains(models, 'ckpt-000003')"),
        ({"run": "run-b"}, "false"),
    ],
)
@pytest.mark.parametrize("offset", [0, 60, 700])
def test_the_games_found_are_those_of_the_view(
    pages: Path, filters: dict[str, object], condition: str, offset: int
) -> None:
    found = find_games(pages, limit=50, offset=offset, **filters)  # type: ignore[arg-type]
    expected = query(
        pages,
        f"SELECT game_id FROM games WHERE {condition} "
        "ORDER BY coalesce(ended_at, started_at) DESC, run_id, split, game_index DESC LIMIT 50 OFFSET $1",
        [offset],
    )
    assert [row["game"] for row in found.dicts()] == [game for (game,) in expected.rows]
