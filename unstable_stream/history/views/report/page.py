"""Put the report together as one HTML file that contains everything and escapes the models' texts."""

import base64
import contextlib
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import msgspec

from unstable_stream.archive import held
from unstable_stream.errors import ReportError
from unstable_stream.history.views.report.over_seeds import seeds_results
from unstable_stream.history.views.report.reading import before_and_after, labels_of, read_run
from unstable_stream.history.views.report.samples import pick_samples
from unstable_stream.history.views.report.sections import build_sections
from unstable_stream.history.views.written import config_differences, config_text, templates
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.version import __version__


def write_report(
    archive: ArchiveAddress,
    run_ids: Sequence[str],
    output: Path,
    *,
    samples: int = 6,
    tokenizer: str | None = None,
) -> int:
    """Write the report of the runs and return its size in bytes.

    Args:
        archive: the archive.
        run_ids: exact ids, compared in this order.
        output: the file; replaced as a whole.
        samples: most games shown of each run.
        tokenizer: directory of the tokenizer, if the base model is not where the runs found it.

    Raises:
        ReportError: Jinja is not installed, or the file cannot be written.
        ArchiveError: the archive cannot be read.
    """
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError as error:
        raise ReportError(
            "a report is laid out with Jinja: pip install 'unstable_stream[analytics]'"
        ) from error
    # To open a shared archive or an export costs, and nobody waits for its readers.
    with contextlib.nullcontext() if Path(archive).is_file() else held(archive):
        labels = labels_of(archive, run_ids)
        runs = [read_run(archive, run, label) for run, label in zip(run_ids, labels, strict=True)]
        games = {run: pick_samples(archive, run, limit=samples, tokenizer=tokenizer) for run in run_ids}
    style = "\n".join(map(_text, ("static/uplot-1.6.32.min.css", "static/page.css")))
    licence = f"/*! {_text('static/uplot-LICENSE.txt')}*/"
    parts = map(_text, ("static/uplot-1.6.32.min.js", "static/charts.js", "static/page.js"))
    script = "\n".join([licence, *parts])
    sections = build_sections(runs)
    template = templates("unstable_stream.history.views.report").get_template("page.html.jinja")
    page: bytes = template.render(
        runs=runs,
        games=games,
        changes={facts.run_id: before_and_after(facts) for facts in runs},
        seeds=seeds_results(runs),
        sections=sections,
        numbers=msgspec.to_builtins({"sections": sections, "metrics": []}, enc_hook=str),
        differences=config_differences([facts.config for facts in runs]),
        configs={facts.run_id: config_text(facts.config) for facts in runs},
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style,
        written_at=datetime.now(UTC),
        version=__version__,
    ).encode()
    try:
        output.write_bytes(page)
    except OSError as error:
        raise ReportError(f"cannot write the report to {output}: {error.strerror or error}") from error
    return len(page)


def _text(name: str) -> str:
    """Return a file of this package."""
    return (resources.files("unstable_stream.history.views.report") / name).read_text(encoding="utf-8")
