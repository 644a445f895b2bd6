"""``unstable-stream runs``: what has been run here."""

from datetime import UTC, datetime

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import DataOption, OptionalLogOption
from unstable_stream.ui.cli.query_output import Format, print_rows


def command(
    context: typer.Context,
    data: DataOption = DEFAULT_DATA_DIR,
    log: OptionalLogOption = None,
    *,
    form: Format,
) -> None:
    """List the runs, newest first, with the evaluated win rate of each one's latest checkpoint.

    A run that has not ended and has recorded nothing for ten minutes is lost: resume it.

    Asks the archive; with --log, or where there is no archive, the log, which knows no games and win rates.

    Example: unstable-stream runs --data unstable-data
    """
    from unstable_stream.api.build import list_runs, runs_overview
    from unstable_stream.api.place import Place

    source = context.get_parameter_source("log")
    asked_for = source is not None and source.name == "COMMANDLINE"
    place = Place.at(data, log)
    if asked_for or (not place.has_archive and (log is not None or place.data.log.is_file())):
        rows = [
            (run.run_id, run.name, _utc(run.started_at_ms), run.state, run.updates, run.silence or None)
            for run in list_runs(data, log)
        ]
        print_rows(("run", "name", "started", "state", "updates", "silence"), rows, form)
        return
    result = runs_overview(place)
    print_rows(result.columns, result.rows, form)


def _utc(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).replace(tzinfo=None)  # as the archive has it
