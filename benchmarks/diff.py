"""``diff`` of two runs, against bare DuckDB that joins their turns and steps and compares the tokens.

``python -m benchmarks.diff --updates 14300`` compares two made-up runs of half a million events each, alike
but for their rewards; it writes them first, which takes longer. Both sides in CPU time of all threads because
the machine may have other work; the time by the clock is printed beside it.
"""

import tempfile
import time
from functools import partial
from pathlib import Path

import duckdb

import unstable_stream as us
from benchmarks.harness import compare, duckdb_file, parser, report
from tests.archive.history import made_up_run, stored
from unstable_stream.api.place import Place
from unstable_stream.archive import ArchiveWriter

_TOKENS = """
    WITH t AS (SELECT t.*, o.split, o.game_index FROM turns AS t JOIN game_outcomes AS o USING (game_id))
    SELECT count(*) FROM t AS a JOIN t AS b USING (split, game_index, game_turn)
    WHERE a.run_id = 'run-a' AND b.run_id = 'run-b' AND (
        a.completion_token_ids <> b.completion_token_ids OR a.prompt_token_ids <> b.prompt_token_ids)
"""
_STEPS = """
    WITH s AS (SELECT s.*, o.split FROM steps AS s JOIN game_outcomes AS o USING (game_id))
    SELECT count(*) FROM s AS a JOIN s AS b USING (split, game_index, seat, turn_index)
    WHERE a.run_id = 'run-a' AND b.run_id = 'run-b' AND a.reward <> b.reward
"""


def by_command(place: Place) -> float:
    """Return comparisons a second of CPU time."""
    began, clock = time.process_time(), time.perf_counter()
    us.diff("run-a", "run-b", data=place.root)
    print(f"diff: {time.perf_counter() - clock:.1f} s by the clock")
    return 1 / (time.process_time() - began)


def bare(place: Place) -> float:
    """Return rounds of the two queries a second of CPU time."""
    began = time.process_time()
    with duckdb.connect(str(place.archive), read_only=True) as connection:
        for sql in (_TOKENS, _STEPS):
            connection.execute(sql).fetchall()
    return 1 / (time.process_time() - began)


def main() -> None:
    """Write two runs, measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--updates", type=int, default=1000, help="of each run; 35 events each")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="diff-bench-") as scratch:
        place = Place.at(Path(scratch) / "data")
        archive = duckdb_file(place.archive)
        archive.parent.mkdir(parents=True)
        events = 0
        with ArchiveWriter(archive) as writer:
            for run in ("run-a", "run-b"):
                recorded = list(made_up_run(run, updates=options.updates))
                events += len(recorded)
                writer.write(stored(recorded))
        found = compare(
            f"{events:,} events",
            partial(by_command, place),
            partial(bare, place),
            unit="comparisons/s",
            rounds=options.rounds,
        )
    report("diff against bare queries", [found], options.json, versions={"duckdb": duckdb.__version__})


if __name__ == "__main__":
    main()
