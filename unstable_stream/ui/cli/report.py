"""``unstable-stream report``: a run, or several, as one page to look at and send around."""

from pathlib import Path
from typing import Annotated

import typer

from unstable_stream.api.place import DEFAULT_DATA_DIR
from unstable_stream.ui.cli.options import DataOption


def command(
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...")] = None,
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("report.html"),
    data: DataOption = DEFAULT_DATA_DIR,
    samples: Annotated[int, typer.Option(min=0)] = 6,
    tokenizer: str | None = None,
) -> None:
    """Write one HTML page about a run: results, curves, ratings and games to read; opens without a network.

    Several runs are compared in the same plots.

    Example: unstable-stream report quickstart -o report.html

    Example: unstable-stream report RUN OTHER_RUN -o comparison.html

    Args:
        runs: Run ids, beginnings of them, or names; none: the newest run.
        output: The HTML file to write.
        samples: Most games to show of each run.
        tokenizer: Directory of the model's tokenizer, to show tokens as text; by default where the run found
            it.
    """
    from unstable_stream.api.archived import find_runs, write_report
    from unstable_stream.api.output import plain_console
    from unstable_stream.api.place import Place

    archive = Place.at(data).archive
    console = plain_console(stderr=True, highlight=False)
    with console.status("writing the report"):
        size = write_report(
            archive, find_runs(archive, runs or []), output, samples=samples, tokenizer=tokenizer
        )
    console.print(f"{output} written, {size / 1e6:.1f} MB: open it in a browser")
