"""Compare any number of runs: one table of groups, curves, and files for a paper."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from unstable_stream.api.place import Place
from unstable_stream.api.settings import full_key
from unstable_stream.archive import held
from unstable_stream.errors import ConfigError, ReportError, RunError
from unstable_stream.history.views.report.charts import Chart
from unstable_stream.history.views.report.groups import GroupTable as GroupTable
from unstable_stream.history.views.report.groups import (
    RunGroup,
    compare_groups,
    group_chart,
    group_runs,
)
from unstable_stream.history.views.report.picture import svg_of
from unstable_stream.history.views.report.reading import (
    RunFacts,
    find_runs,
    labels_of,
    read_summary,
    with_curves,
    with_results,
)
from unstable_stream.history.views.written import write_csv
from unstable_stream.log.stores.archive_address import ArchiveAddress

_SAME: Final = ("env_id", "model", "opponent")
_WON: Final = ("games", "wins", "draws", "win_rate", "low", "high", "reward")
_SO_FAR: Final = ("games", "tokens", "seconds")


@dataclass(frozen=True)
class RunComparison:
    """Runs by configuration; see :func:`compare`."""

    runs: Sequence[RunGroup]
    """Each group with all that was read of its runs."""
    table: GroupTable
    """A row for each group, with its results by opponent."""

    def chart(self, x: str = "updates", metric: str = "win_rate") -> Chart:
        """Return the curves of the groups: the means of their runs with 95 % intervals.

        Args:
            x: ``updates``, ``games``, ``tokens``, ``seconds`` or ``hours``.
            metric: ``win_rate``, ``reward``, ``turns``, ``invalid_rate`` or ``truncated_rate`` of evaluation
                games, or a metric of updates, such as ``entropy``.

        Raises:
            ConfigError: there is no such axis or metric.
        """
        return group_chart(self.runs, x, metric)

    def write_picture(self, file: Path | str, x: str = "updates", metric: str = "win_rate") -> None:
        """Draw the curves into an SVG file, with ``x`` and ``metric`` as for :meth:`chart`.

        Raises:
            ConfigError: another kind of file, or no such axis or metric.
            ReportError: the file cannot be written.
        """
        if (path := Path(file)).suffix != ".svg":
            name = path.with_suffix(".svg").name if path.suffix else f"{path.name}.svg"
            raise ConfigError(f"{path}: only SVG can be drawn: name the picture {name}")
        _write(path, svg_of(self.chart(x, metric)))

    def write_csv(self, file: Path | str) -> None:
        """Write a row for each run, evaluated policy and opponent.

        Raises:
            ReportError: the file cannot be written.
        """
        text = io.StringIO()
        columns = [
            "group",
            "run_id",
            "seed",
            "state",
            *_SAME,
            "update",
            *(f"{name}_so_far" for name in _SO_FAR),
        ]
        write_csv(text, [*columns, *_WON], self._evaluations())
        _write(Path(file), text.getvalue())

    def _evaluations(self) -> list[list[Any]]:
        """``Any``: a column's value; nothing where a fork does not know how far its parent was."""
        found = []
        for group in self.runs:
            for facts in group.runs:
                clock = {row["update"]: row for row in facts.clock}
                who = [group.name, facts.run_id, facts.about["seed"], facts.life[0]]
                for row in facts.opponents:
                    so_far = [clock.get(row["version"], {}).get(name) for name in _SO_FAR]
                    same, won = ([row[name] for name in names] for names in (_SAME, _WON))
                    found.append([*who, *same, row["version"], *so_far, *won])
        return found

    def to_json(self) -> bytes:
        """Return the table as JSON."""
        return msgspec.json.encode(self.table)


def compare(
    *runs: str,
    baseline: str | None = None,
    by: Sequence[str] = (),
    opponents: Sequence[str] = (),
    data: str | Path | None = None,
) -> RunComparison:
    """Compare runs in one table, grouped by what differs in their configurations.

    Runs that differ in the seed alone are one group, whose numbers are means over its runs. For each group
    and opponent: games won, and how probably that is more than the baseline's; with 95 % intervals.

    Args:
        runs: each a run, by its name or the beginning of its id, or a sweep for all of its runs; none: the
            newest run.
        baseline: the group that the others are held against, by its name or by one of its runs; ``None``:
            that of the first run.
        by: keys, or sections, that alone make groups, such as ``learning_rate``; none: all keys but the seed.
        opponents: only evaluations against these; none: all.
        data: the data directory.

    Raises:
        ConfigError: no such baseline, key or opponent.
        RunError: no such run, or several.
        ArchiveError: there is no archive.
    """
    archive = Place.at(data).archive
    with contextlib.nullcontext() if Path(archive).is_file() else held(archive):
        ids = find_runs(archive, runs)
        labels = labels_of(archive, ids)
        read = [_read(archive, run, label) for run, label in zip(ids, labels, strict=True)]
        met = sorted({row["opponent"] for facts in read for row in facts.opponents if row["opponent"]})
        if missing := [name for name in opponents if name not in met]:
            known = ", ".join(met) or "nobody"
            raise ConfigError(f"opponent {missing[0]!r}: not met in an evaluation, in which they met {known}")
        if opponents:
            read = [
                replace(facts, opponents=[row for row in facts.opponents if row["opponent"] in opponents])
                for facts in read
            ]
        groups = group_runs(read, [".".join(full_key(key)) for key in by])
        if baseline is not None and baseline not in {group.name for group in groups}:
            with contextlib.suppress(RunError):
                baseline = find_runs(archive, [baseline])[0]
    return RunComparison(groups, compare_groups(groups, baseline))


def _read(archive: ArchiveAddress, run_id: str, label: str) -> RunFacts:
    with held(archive):
        return with_curves(archive, with_results(archive, read_summary(archive, run_id, label)))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"cannot write {file}: {error.strerror or error}") from error
