"""Make a made-up history long: each game becomes many, inside DuckDB, so a million are there in a minute.

The games of a policy are played again and again before the next update, which trains on the steps of all.
So there are as many updates and checkpoints as before.
"""

from pathlib import Path
from typing import Final

import duckdb

_IDS: Final = ("game_id", "trajectory_id", "step_id")
_COUNTS: Final = ("game_index", "games")
_TIMES: Final = ("started_at", "finished_at", "abandoned_at", "occurred_at")
_OF_GAMES: Final = (
    "game_starts",
    "planned_seats",
    "game_outcomes",
    "seats",
    "actions",
    "trajectories",
    "turns",
    "steps",
    "update_steps",
    "ratings",
    "game_abandonments",
)


def multiply_games(archive: Path, times: int) -> None:
    """Write each game ``times`` over into the archive, in the order of time, its steps to its update.

    Ids of the games added end with ``~1``, ``~2`` and so on; a game that took a second takes a share of it.
    """
    with duckdb.connect(str(archive)) as connection:
        for table in _OF_GAMES:
            columns = {row[0] for row in connection.execute(f"DESCRIBE {table}").fetchall()}
            changed = [f"{name} || suffix AS {name}" for name in _IDS if name in columns]
            changed += [
                f"({name} * {times} + again)::INTEGER AS {name}" for name in _COUNTS if name in columns
            ]
            changed += [
                f"{name} + to_microseconds(again * 1000000 // {times}) AS {name}"
                for name in _TIMES
                if name in columns
            ]
            connection.execute(
                f"CREATE TEMP TABLE every AS SELECT * EXCLUDE (again, suffix) "
                f"REPLACE ({', '.join(changed)}, record_number * {times} + again AS record_number) "
                f"FROM {table}, (SELECT range AS again, CASE WHEN range > 0 THEN '~' || range ELSE '' END "
                f"AS suffix FROM range({times})) AS repeated"
            )
            connection.execute(f"TRUNCATE {table}")
            connection.execute(f"INSERT INTO {table} BY NAME FROM every ORDER BY record_number")
            connection.execute("DROP TABLE every")
        connection.execute(f"UPDATE schema_version SET next_record = next_record * {times}")
        connection.execute("CHECKPOINT")
