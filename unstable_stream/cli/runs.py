"""``unstable-stream runs``: what has been run here."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import typer

from unstable_stream.cli.options import DataOption, OptionalLogOption
from unstable_stream.cli.query_output import CsvOption, JsonOption, TableOption, pick_format, print_rows
from unstable_stream.runs.data_dir import DEFAULT_DATA_DIR

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
    context: typer.Context,
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    as_csv: CsvOption = False,
    as_json: JsonOption = False,
    as_table: TableOption = False,
) -> None:
    """List the runs, newest first, with the evaluated win rate of each one's latest checkpoint.

    Asks the archive; with --log, or where there is no archive, the log, which knows no games and win rates.

    Example: unstable-stream runs --data unstable-data
    """
    form = pick_format(as_csv, as_json, as_table)
    source = context.get_parameter_source("log")
    asked_for = source is not None and source.name == "COMMANDLINE"
    archive, file = data / "archive.duckdb", data / "log.sqlite"
    if asked_for or (not archive.is_file() and (log is not None or file.is_file())):
        rows = asyncio.run(_runs_of_log(log or "local", data))
        print_rows(("run", "name", "started", "state", "updates"), rows, form)
        return
    from unstable_stream.archive import query

    result = query(archive, _RUNS)
    print_rows(result.columns, result.rows, form)


async def _runs_of_log(location: str, data: Path) -> list[tuple[object, ...]]:
    from unstable_stream.log.open import opened_log
    from unstable_stream.runs.data_dir import DataDir
    from unstable_stream.runs.history import list_runs

    async with opened_log(location, DataDir(data).log, existing=True) as log:
        found = await list_runs(log)
    return [(run.run_id, run.name, _utc(run.started_at_ms), run.state, run.updates) for run in found]


def _utc(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).replace(tzinfo=None)  # as the archive has it
