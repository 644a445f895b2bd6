"""One table of all ratios and their targets; against an earlier one, what has changed.

``make bench`` runs the benchmarks, each with ``--json DIRECTORY/NAME.json``, and ends with
``python -m benchmarks.summary DIRECTORY``. ``--save FILE`` keeps the table as a baseline, ``--against PLACE``
lays the newest of each ratio beside the new one: a change counts only where the rounds of the two do not
overlap. ``--strict`` fails on a ratio that is, in every round, below half of the lowest it ever was, on any
of the machines whose tables were kept.
"""

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.harness import machine, target_text

_FALLEN: Final = 0.5


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of a benchmark: a ratio with its target."""

    script: str
    name: str
    ratio: float
    lowest: float
    highest: float
    """Lowest and highest ratio of a single round."""
    target: float | None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without one."""
        return None if self.target is None else self.ratio >= self.target


@dataclass(frozen=True, slots=True)
class Baseline:
    """A table that was kept."""

    date: str
    machine: Mapping[str, str | int]
    rows: Mapping[tuple[str, str], Measured]
    """By script and name."""

    @classmethod
    def load(cls, path: Path) -> "Baseline":
        """Read what ``--save`` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [Measured(**row) for row in content["rows"]]
        return cls(content["date"], content["machine"], {(row.script, row.name): row for row in rows})


def read_results(directory: Path) -> tuple[list[Measured], list[str]]:
    """Return the rows of every result in a directory, and the names of files without any.

    Some benchmarks measure no ratio, or only print: their tables stand above this one.
    """
    rows: list[Measured] = []
    others: list[str] = []
    for path in sorted(directory.glob("*.json")):
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        results = content.get("results", []) if isinstance(content, dict) else []
        found = [row for row in results if isinstance(row, dict) and {"ours", "baseline"} <= row.keys()]
        rows += [_measured(path.stem, row) for row in found]
        if not found:
            others.append(path.stem)
    return rows, others


def _measured(script: str, row: Mapping[str, Any]) -> Measured:
    """``Any``: as the benchmark wrote it."""
    ours, baseline = row["ours"], row["baseline"]
    ratios = [own / base for own, base in zip(ours, baseline, strict=True)]
    ratio = statistics.median(ours) / statistics.median(baseline)
    return Measured(script, row["name"], ratio, min(ratios), max(ratios), row.get("target"))


def compared(row: Measured, then: Measured | None) -> str:
    """Say what has become of a ratio."""
    if then is None:
        return "new"
    if row.lowest <= then.highest and then.lowest <= row.highest:
        return f"{then.ratio:.2f}, no change to be told"
    return (
        f"{then.ratio:.2f}, {'better' if row.ratio > then.ratio else 'worse'} by {row.ratio / then.ratio:.2f}"
    )


def fallen(rows: Sequence[Measured], history: Sequence[Baseline]) -> list[Measured]:
    """Return the rows that are in every round far below all rounds of all earlier tables."""
    far = []
    for row in rows:
        before = [then.rows[key] for then in history if (key := (row.script, row.name)) in then.rows]
        if before and row.highest < _FALLEN * min(then.lowest for then in before):
            far.append(row)
    return far


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("directory", type=Path, help="where the benchmarks wrote their results")
    arguments.add_argument("--save", type=Path, default=None, help="keep the table in this file")
    arguments.add_argument(
        "--against", type=Path, default=None, help="an earlier table, or a directory of them"
    )
    arguments.add_argument("--strict", action="store_true", help="fail if a ratio is far below all before")
    options = arguments.parse_args()
    rows, others = read_results(options.directory)
    history = _history(options.against)
    # Later tables take the place of earlier ones, row by row: a table need not have all rows.
    newest = {key: (then.date, row) for then in history for key, row in then.rows.items()}
    named = ", ".join(f"{key} {value}" for key, value in machine().items())
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    table = Table(title=f"Ratios of {date} on {named}", title_justify="left")
    for heading in ("benchmark", "what", "ratio", "lowest … highest", "target"):
        table.add_column(heading, justify="left" if heading in ("benchmark", "what") else "right")
    if history:
        table.add_column("before")
    for row in rows:
        date_then, row_then = newest.get((row.script, row.name), ("", None))
        change = [f"{date_then} {compared(row, row_then)}".strip()] if history else []
        spread = f"{row.lowest:.2f} … {row.highest:.2f}"
        target = target_text(row.target, met=row.met)
        table.add_row(row.script, row.name, f"{row.ratio:.2f}", spread, target, *change)
    console = Console(width=None if Console().is_terminal else 170)
    console.print(table)
    judged = [row for row in rows if row.target is not None]
    console.print(f"{sum(row.met is True for row in judged)} of {len(judged)} targets met")
    if others:
        console.print(f"without ratios: {', '.join(others)}")
    if options.save is not None:
        content = {"date": date, "machine": machine(), "rows": [asdict(row) for row in rows]}
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    far = fallen(rows, history)
    for row in far:
        console.print(f"far below all before: {row.script}, {row.name}", style="red")
    if far and options.strict:
        sys.exit(1)


def _history(place: Path | None) -> list[Baseline]:
    """Return the table in a file, or those of a directory by date; none where nothing is named or kept."""
    if place is None:
        return []
    found = [place] if place.is_file() else place.glob("*.json")
    return sorted(map(Baseline.load, found), key=lambda then: then.date)


if __name__ == "__main__":
    main()
