"""First views of the live pages of long histories, against bare DuckDB reading what each is made of.

``python -m benchmarks.ui --games 100000 1000000``. A first view is a request to the application, without a
network, of pages that remember nothing yet; it takes turns with the baseline, both in CPU time of all threads
because the machine may have other work. The baseline of a list is one query: the newest games with all
columns; games and evaluated wins of each run. That of a run's page and of its results, which come after it,
joins seats with outcomes, that of its curves also steps with updates, each to a count. The made-up history is
that of the tests, multiplied.
"""

import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import duckdb
from starlette.testclient import TestClient

from benchmarks.harness import Comparison, compare, duckdb_file, parser, report
from tests.archive.history import GAMES_PER_UPDATE, made_up_run, stored
from tests.archive.many_games import multiply_games
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter
from unstable_stream.ui.web import Site, build_app

_UPDATES = 500
_GAMES_OF_ONE = _UPDATES * (GAMES_PER_UPDATE + 2)
_RUN = "run-a"
_HOST = "127.0.0.1:8787"
_NEWEST = "FROM games ORDER BY coalesce(ended_at, started_at) DESC, run_id, split, game_index DESC LIMIT 50"
_OF_RUNS = """
    SELECT o.run_id, count(*), count(*) FILTER (s.result = 'win' AND s.split = 'eval'), max(o.finished_at)
    FROM game_outcomes AS o JOIN seats AS s USING (game_id) GROUP BY o.run_id
"""
_SEATS = "SELECT count(*) FROM seats AS s JOIN game_outcomes AS o USING (game_id) WHERE s.run_id = 'run-a'"
_STEPS = "SELECT count(*) FROM update_steps AS u JOIN steps AS s USING (step_id) WHERE u.run_id = 'run-a'"
_PAGES: Sequence[tuple[str, str, Sequence[str]]] = (
    ("runs", "/", [_OF_RUNS]),
    ("games", "/games", [_NEWEST]),
    ("games of a run's evaluation", f"/games?run={_RUN}&split=eval", [_NEWEST]),
    ("a run", f"/runs/{_RUN}", [_SEATS]),
    ("its results", f"/runs/{_RUN}/results", [_SEATS]),
    ("its curves", f"/charts.json?run={_RUN}", [_SEATS, _STEPS]),
)


def make_archive(place: Place, games: int) -> None:
    """Write an archive of about so many games."""
    archive = duckdb_file(place.archive)
    archive.parent.mkdir(parents=True)
    with ArchiveWriter(archive) as writer:
        writer.write(stored(made_up_run(_RUN, updates=_UPDATES)))
    multiply_games(archive, max(1, games // _GAMES_OF_ONE))


def first_view(place: Place, path: str) -> float:
    """Return first views a second of CPU time."""
    app = build_app(Site([place]), token="token", hosts=[_HOST])
    with TestClient(app, base_url=f"http://{_HOST}") as client:
        client.get("/static/ui.css?token=token")
        began = time.process_time()
        answer = client.get(f"/{place.root.name}{path}")
        took = time.process_time() - began
    assert answer.status_code == 200, answer.text
    return 1 / took


def bare(place: Place, queries: Sequence[str]) -> float:
    """Return rounds of the queries a second of CPU time."""
    began = time.process_time()
    with duckdb.connect(str(place.archive), read_only=True) as connection:
        for sql in queries:
            connection.execute(sql).fetchall()
    return 1 / (time.process_time() - began)


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--games", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    options = arguments.parse_args()
    results: list[Comparison] = []
    for games in options.games:
        with tempfile.TemporaryDirectory(prefix="ui-bench-") as scratch:
            place = Place.at(Path(scratch) / "data")
            make_archive(place, games)
            results += [
                compare(
                    f"{name}, {games:,} games",
                    partial(first_view, place, path),
                    partial(bare, place, queries),
                    unit="views/s",
                    rounds=options.rounds,
                )
                for name, path, queries in _PAGES
            ]
    report("First views against bare queries", results, options.json, versions={"duckdb": duckdb.__version__})


if __name__ == "__main__":
    main()
