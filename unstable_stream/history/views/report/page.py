"""Put the report together as one HTML file that contains everything and escapes the models' texts."""

import base64
import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from unstable_stream.archive import held
from unstable_stream.errors import ReportError
from unstable_stream.history.views.report.charts import Section
from unstable_stream.history.views.report.groups import compare_groups, group_runs
from unstable_stream.history.views.report.reading import before_and_after, labels_of, read_run
from unstable_stream.history.views.report.samples import pick_samples, shortened
from unstable_stream.history.views.report.sections import build_sections
from unstable_stream.history.views.written import config_differences, config_text, named_items, templates
from unstable_stream.log.stores.archive_address import ArchiveAddress
from unstable_stream.runs.run_config import RunConfig
from unstable_stream.version import __version__

MOST_BYTES: Final = 3_000_000
"""The size of a page: of games that would make it larger, moves in the middle are left out."""


class Proof(NamedTuple):
    """The result of a verification."""

    ok: bool
    verdict: str
    table: str
    problems: Sequence[str]
    digest: str
    """SHA-256 of what ``unstable-stream verify RUN --json`` prints."""


def write_report(
    archive: ArchiveAddress,
    run_ids: Sequence[str],
    output: Path,
    *,
    samples: int = 10,
    tokenizer: str | None = None,
    proofs: Mapping[str, Proof] | None = None,
) -> int:
    """Write the report of the runs and return its size in bytes.

    Args:
        archive: the archive.
        run_ids: exact ids, compared in this order.
        output: the file; replaced as a whole.
        samples: most games shown of each run.
        tokenizer: directory of the tokenizer, if the base model is not where the runs found it.
        proofs: what verifications found, by run; of others the page says how to verify them.

    Raises:
        ReportError: Jinja is not installed, or the file cannot be written.
        ArchiveError: the archive cannot be read.
    """
    template = _template("page")
    # To open a shared archive or an export costs, and nobody waits for its readers.
    with contextlib.nullcontext() if Path(archive).is_file() else held(archive):
        labels = labels_of(archive, run_ids)
        runs = [read_run(archive, run, label) for run, label in zip(run_ids, labels, strict=True)]
        games = {
            facts.run_id: pick_samples(
                archive, facts.run_id, limit=samples, results=facts.opponents, tokenizer=tokenizer
            )
            for facts in runs
        }
    sections = build_sections(runs)
    values: dict[str, Any] = {
        "runs": runs,
        "proofs": proofs or {},
        "changes": {facts.run_id: before_and_after(facts) for facts in runs},
        "table": compare_groups(group_runs(runs)),
        "sections": sections,
        "numbers": msgspec.to_builtins({"sections": sections, "metrics": []}, enc_hook=str),
        "differences": config_differences([facts.config for facts in runs]),
        "changed": {facts.run_id: _changed(facts.config) for facts in runs},
        "configs": {facts.run_id: config_text(facts.config) for facts in runs},
        "written_at": datetime.now(UTC),
    }
    page = _page(template, games=games, **values)
    while len(page) > MOST_BYTES and any(len(game.moves) > 1 for chosen in games.values() for game in chosen):
        games = {run: [shortened(game) for game in chosen] for run, chosen in games.items()}
        page = _page(template, games=games, **values)
    return _write(output, page)


def _changed(config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the keys that are not at their default, with both values. ``Any``: JSON.

    Of a list, such as that of opponents, only the names are shown.
    """
    unset = RunConfig.model_construct(model="", train_envs=())
    defaults = unset.model_dump(mode="json", exclude={"model", "train_envs"})
    differences = config_differences([defaults, config])
    # What the version that recorded the run did not know is no difference.
    return [
        (key, named_items(before), named_items(now)) for key, (before, now) in differences if now != "not set"
    ]


def write_comparison(
    output: Path, title: str, says: str, sections: Sequence[Section], told: Sequence[str]
) -> int:
    """Write charts on a page of their own; return its size in bytes.

    Args:
        output: the file; replaced as a whole.
        title: of the page.
        says: a sentence under it.
        sections: the charts.
        told: lines below them.

    Raises:
        ReportError: Jinja is not installed, or the file cannot be written.
    """
    numbers = msgspec.to_builtins({"sections": sections, "metrics": []})
    page = _page(_template("comparison"), title=title, says=says, numbers=numbers, told=told)
    return _write(output, page)


def _template(name: str) -> Any:
    """Return one of the pages, as Jinja has it."""
    try:
        import jinja2  # noqa: F401
    except ModuleNotFoundError as error:
        raise ReportError(
            "a report is laid out with Jinja: pip install 'unstable_stream[analytics]'"
        ) from error
    return templates("unstable_stream.history.views.report").get_template(f"{name}.html.jinja")


def _page(template: Any, **values: Any) -> bytes:
    """Return a page with these values, of any kind, and the scripts that draw charts."""
    licence = f"/*! {_text('static/uplot-LICENSE.txt')}*/"
    parts = map(_text, ("static/uplot-1.6.32.min.js", "static/charts.js", "static/page.js"))
    script = "\n".join([licence, *parts])
    page: bytes = template.render(
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style="\n".join(map(_text, ("static/uplot-1.6.32.min.css", "static/page.css"))),
        version=__version__,
        **values,
    ).encode()
    return page


def _write(output: Path, page: bytes) -> int:
    """Write a page; return its size."""
    try:
        output.write_bytes(page)
    except OSError as error:
        raise ReportError(f"cannot write the report to {output}: {error.strerror or error}") from error
    return len(page)


def _text(name: str) -> str:
    """Return a file of this package."""
    return (resources.files("unstable_stream.history.views.report") / name).read_text(encoding="utf-8")
