"""``unstable-stream runs``: what has been run here."""

from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption
from unstable_stream.cli.query_output import CsvOption, JsonOption, TableOption, pick_format, print_rows

__all__ = ["register"]

_RUNS = """
WITH latest AS (
    SELECT run_id, arg_max(win_rate, policy_version) AS win_rate FROM (
        SELECT run_id, policy_version, sum(win_rate * games) / sum(games) AS win_rate
        FROM learning_curve WHERE split = 'eval' GROUP BY run_id, policy_version
    ) GROUP BY run_id
)
SELECT
    r.run_id AS run, r.name, r.started_at AS started, r.state,
    coalesce(l.games_finished, 0) AS games, coalesce(u.updates, 0) AS updates, latest.win_rate
FROM runs AS r
LEFT JOIN ledger AS l USING (run_id)
LEFT JOIN (SELECT run_id, count(*) AS updates FROM updates GROUP BY run_id) AS u USING (run_id)
LEFT JOIN latest USING (run_id)
ORDER BY r.started_at DESC, r.run_id
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("runs", help=_runs.__doc__)(_runs)


def _runs(
    data: DataOption = Path("unstable-data"),
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
) -> None:
    """List the runs, newest first, with the evaluated win rate of each one's latest checkpoint.

    Example: unstable-stream runs --data unstable-data
    """
    from unstable_stream.archive import query

    form = pick_format(as_csv, as_json, as_table)
    result = query(data / "archive.duckdb", _RUNS)
    print_rows(result.columns, result.rows, form)
