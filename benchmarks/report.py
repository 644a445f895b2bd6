"""A report and a walk with ``why`` against bare DuckDB reading the very rows they are made of.

``python -m benchmarks.report --updates 300``, or of your own: ``--archive unstable-data/archive.duckdb``

The report's baseline reads, to Arrow and on one open connection, the tables a report condenses: all rows of
the run, all columns. The walk's baseline reads what an update came from: its steps, their turns with
tokens, their games and adapters; the walk besides links and counts them in both directions, and finds the
update by its name. Ours open the archive as often as they do in use, for each question anew, so that a run
can go on writing. The walk is made twice: all of it, and with the first three of each link, as on the command
line. The made-up history is that of the tests; ``--games 1000000`` multiplies it.
"""

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

import duckdb

from benchmarks.harness import compare, parser, report
from tests.archive.history import GAMES_PER_UPDATE, made_up_run, stored
from tests.archive.many_games import multiply_games
from unstable_stream.archive import ArchiveWriter, query
from unstable_stream.history.hindsight.why import find_node, trace
from unstable_stream.history.views.report import find_runs, write_report

_REPORTED = (
    "game_starts",
    "game_outcomes",
    "seats",
    "trajectories",
    "steps",
    "updates",
    "update_steps",
    "ratings",
)
_BEHIND_AN_UPDATE = """
    SELECT s.*, t.action, t.completion, t.prompt_token_ids, t.completion_token_ids, t.logprobs, o.*, c.*
    FROM update_steps AS u
    JOIN steps AS s USING (step_id)
    JOIN turns AS t USING (trajectory_id, turn_index)
    JOIN game_outcomes AS o ON o.game_id = s.game_id
    JOIN checkpoints AS c ON c.run_id = s.run_id AND c.model_uid = s.model_uid
    WHERE u.run_id = $run AND u.update = $update
"""


def _archive(directory: Path, updates: int, games: int) -> Path:
    path = directory / "archive.duckdb"
    with ArchiveWriter(path) as writer:
        writer.write(stored(made_up_run(updates=updates)))
    multiply_games(path, max(1, games // (updates * (GAMES_PER_UPDATE + 2))))
    return path


def main() -> None:
    """Measure and report."""
    arguments = parser(__doc__ or "")
    arguments.add_argument("--archive", type=Path, default=None, help="an archive; default: a made-up one")
    arguments.add_argument("--updates", type=int, default=300, help="of the made-up history; 6 games each")
    arguments.add_argument("--games", type=int, default=0, help="so many; 0: 6 for each update")
    options = arguments.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="report-bench-"))
    archive = options.archive or _archive(directory, options.updates, options.games)
    (run,) = find_runs(archive, [])
    ((last,),) = query(archive, "SELECT max(update) FROM updates WHERE run_id = ?", [run]).rows

    def write() -> float:
        began = time.perf_counter()
        write_report(archive, [run], directory / "report.html")
        return 1 / (time.perf_counter() - began)

    def read() -> float:
        began = time.perf_counter()
        with duckdb.connect(str(archive), read_only=True) as connection:
            for table in _REPORTED:
                connection.sql(f"SELECT * FROM {table} WHERE run_id = ?", params=[run]).to_arrow_table()
        return 1 / (time.perf_counter() - began)

    def walk(most: int | None) -> float:
        began = time.perf_counter()
        trace(archive, find_node(archive, f"{run}:update:{last}"), depth=2, most=most)
        return 1 / (time.perf_counter() - began)

    def read_behind() -> float:
        began = time.perf_counter()
        with duckdb.connect(str(archive), read_only=True) as connection:
            parameters = {"run": run, "update": last}
            connection.sql(_BEHIND_AN_UPDATE, params=parameters).to_arrow_table()
        return 1 / (time.perf_counter() - began)

    comparisons = [
        compare("report, plots and games included", write, read, unit="reports/s", rounds=options.rounds),
        *(
            compare(
                f"why an update, both ways, {kept}",
                partial(walk, most),
                read_behind,
                unit="walks/s",
                rounds=options.rounds,
            )
            for kept, most in (("all of it", None), ("3 of each link", 3))
        ),
    ]
    shutil.rmtree(directory)
    report(f"{archive}, run {run}", comparisons, options.json, versions={"duckdb": duckdb.__version__})


if __name__ == "__main__":
    main()
